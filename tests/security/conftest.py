"""Results of somebody who means harm: every text of them, and every name, is what must not get through."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvbench.records import Recorder, ResultsFolder, Row
from tests.cli.conftest import Command, kvbench  # noqa: F401

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>[click](javascript:alert(1))"
TERMINAL = "\x1b[2J\x1b]0;taken\x07\x9b31m\u202e"
TEX = r"\input{/etc/passwd}\write18{touch taken}%$"
FORMULA = '=HYPERLINK("http://taken.example","x")'
TEXT = f"{FORMULA} {MARKUP} {TERMINAL} {TEX} \u2028::error::taken\n=2+3"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def hostile() -> Callable[..., list[Row]]:
    """Rows whose texts are all hostile; one of them failed. Columns may be given."""

    def rows(right: int = 3, **columns: Any) -> list[Row]:
        texts = {name: TEXT for name in ("model", "task", "policy", "score", "variant", "layout", "schedule", "metric")}
        fixed = {"cell": "ab12", "task_version": TEXT, "budget": "0.1", "context_length": 512, "seed": 1}
        fixed |= {"code": "c0de00000000"}
        measured = {"prediction": TEXT, "cache_bytes": 1024, "full_cache_bytes": 4096, "kept_fraction": 0.25}
        whole: dict[str, Any] = {**texts, **fixed, **measured, "prompt_sha256": "cd34", **columns}
        failed = Row(**{**whole, "prediction": None, "sample": 12, "error": TEXT})
        return [*(Row(**whole, sample=at, value=float(at < right)) for at in range(12)), failed]

    return rows


@pytest.fixture
def folder(tmp_path: Path, hostile: Callable[..., list[Row]]) -> Callable[..., Path]:
    """A results folder of such rows."""

    def write(name: str = "evil", *cells: list[Row], **columns: Any) -> Path:
        path = tmp_path / name
        environment = ResultsFolder(path).write_environment({"python": TEXT, "device": {"name": TEXT, "dtype": TEXT}})
        with Recorder(path) as recorder:
            for rows in cells or (hostile(**{"environment": environment, **columns}),):
                recorder.append(rows)
        return path

    return write
