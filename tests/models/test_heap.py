"""What the C library keeps: set where it has the setting, and no word where it has not."""

import platform

import pytest

from kvbench.models.loading import process
from kvbench.models.loading.process import keep_freed_memory


def test_only_glibc_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
