"""Lines of progress: what other processes take counts for the time that is left."""

from types import SimpleNamespace
from typing import cast

import pytest

from kvbench.records import Row
from kvbench.run.plan import Plan
from kvbench.work import progress as progress_module
from kvbench.work.progress import progress


def test_prompts_of_other_processes_are_not_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four prompts, of which this process made one in twenty seconds and another process took two."""
    seconds = iter((0.0, 0.0, 5.0, 10.0, 20.0, 30.0))
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    row = cast(Row, SimpleNamespace(error=None))
    with progress(cast(Plan, SimpleNamespace(prefills_to_do=4, rows_to_do=8))) as shown:
        shown.loading("tiny")
        shown.elsewhere(2)
        shown.elsewhere(2)
        shown.recorded([row, row])
        shown.recorded([row, row])
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "loading tiny",
        "2/4 prompts (2 by other processes), 4/8 rows, 10 s, 10 s left, 1,440 rows an hour",
        "3/4 prompts (2 by other processes), 6/8 rows, 20 s, 7 s left, 1,080 rows an hour",
        "4/4 prompts (2 by other processes), 8/8 rows, 30 s, 0 s left, 960 rows an hour",
    ]


def test_what_others_gave_up_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    row = cast(Row, SimpleNamespace(error=None))
    with progress(cast(Plan, SimpleNamespace(prefills_to_do=2, rows_to_do=4))) as shown:
        shown.elsewhere(2)
        shown.recorded([row, row])
        shown.recorded([row, row])
    assert capsys.readouterr().err.splitlines()[-1].startswith("2/2 prompts, 4/4 rows, ")
