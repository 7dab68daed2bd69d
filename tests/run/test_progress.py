"""Lines of progress: what other processes take counts for the time that is left."""

import io
import re
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

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


def test_rows_that_others_made_of_a_prompt_are_no_rows_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Another process made the first two rows of the second prompt."""
    row = cast(Row, SimpleNamespace(error=None))
    with progress(cast(Plan, SimpleNamespace(prefills_to_do=2, rows_to_do=8))) as shown:
        shown.elsewhere(0, whole_job=False)
        shown.recorded([row] * 4)
        shown.elsewhere(2, whole_job=False)
        shown.recorded([row] * 2)
    assert capsys.readouterr().err.splitlines()[-1].startswith("2/2 prompts, 8/8 rows, ")


def test_on_gpus_the_pace_is_that_of_this_process_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of other processes took GPUs of theirs."""
    seconds = iter((0.0, 0.0, 5.0, 10.0))
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    row = cast(Row, SimpleNamespace(error=None))
    with progress(cast(Plan, SimpleNamespace(prefills_to_do=2, rows_to_do=5)), 0.25) as shown:
        shown.loading("tiny")
        shown.elsewhere(3)
        shown.recorded([row, row])
    assert capsys.readouterr().err.splitlines()[-1] == (
        "2/2 prompts (1 by other processes), 5/5 rows, 10 s, 0 s left, 2,880 rows a GPU hour"
    )


@pytest.mark.parametrize(
    ("gpus", "pace", "at_the_end"),
    [(0, "720 rows an hour", "360 rows an hour"), (2, "360 rows a GPU hour", "180 rows a GPU hour")],
)
def test_a_terminal_shows_the_pace_beside_the_bar_and_once_at_the_end(
    gpus: int, pace: str, at_the_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, printed = iter((0.0, 0.0, 10.0, 20.0)), io.StringIO()
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    console = Console(file=printed, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(progress_module, "screen", lambda: console)
    row = cast(Row, SimpleNamespace(error=None))
    with progress(cast(Plan, SimpleNamespace(prefills_to_do=2, rows_to_do=4)), gpus) as shown:
        shown.loading("tiny")
        shown.recorded([row, row])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.getvalue())
    *_, bar, last = filter(None, map(str.strip, text.splitlines()))
    assert f"1/2 prompts, 2 rows, {pace} " in bar and bar.startswith("tiny")
    assert last == f"1/2 prompts, 2/4 rows, 20 s, 20 s left, {at_the_end}"


def test_a_run_on_a_terminal_that_made_nothing_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(progress_module, "screen", lambda: Console(file=printed, force_terminal=True, width=100))
    with progress(cast(Plan, SimpleNamespace(prefills_to_do=0, rows_to_do=0))):
        pass
    assert "prompts, 0" not in printed.getvalue().splitlines()[-1] and "rows an hour" not in printed.getvalue()


def test_what_others_gave_up_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    row = cast(Row, SimpleNamespace(error=None))
    with progress(cast(Plan, SimpleNamespace(prefills_to_do=2, rows_to_do=4))) as shown:
        shown.elsewhere(2)
        shown.recorded([row, row])
        shown.recorded([row, row])
    assert capsys.readouterr().err.splitlines()[-1].startswith("2/2 prompts, 4/4 rows, ")
