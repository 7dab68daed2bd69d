"""Kernels run in Triton's interpreter here, which must be asked for before a kernel's module is imported."""

import os

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="no kernels without triton: pip install 'kvbench[kernels]'")
