"""A small choice of benchmarks/command_lines.py: good lines, faulty ones and lines with changed letters."""

import re

import pytest

from benchmarks.command_lines import Line, failure, failures, place
from kvbench.cli.main import commands


@pytest.mark.parametrize("lines_a_command", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_generated_lines_end_well(lines_a_command: int) -> None:
    """No traceback, no hang, and none that is accepted though wrong."""
    assert failures(lines_a_command * len(commands()), seed=25) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raises", "exit code 1: .*internal error: a bug"),
        ("accepts", "accepted with exit code 0"),
        ("hangs", "SystemExit"),
    ],
)
def test_what_ends_badly_is_seen(monkeypatch: pytest.MonkeyPatch, how: str, why: str) -> None:
    def status(*_: object) -> int:
        if how == "raises":
            raise RuntimeError
        while how == "hangs":
            pass
        return 0

    monkeypatch.setattr("benchmarks.command_lines.SECONDS", 0.3)
    monkeypatch.setattr("kvbench.cli.status.main", status)
    with place():
        assert re.search(why, failure(Line(("status",), "faulty")) or "")
