"""The real command killed, asked to stop and interrupted: whole rows are left, and the rows of an undisturbed run."""

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli import sweep
from kvbench.records import read_rows
from kvbench.run.launch.launcher import SIGNALS
from kvbench.run.signals import handling, stop_at_once, stopping
from kvbench.support.children import python
from kvbench.support.errors import UserError
from tests.cli.conftest import Command, Forked, outcomes, wait_for_rows

Fork = Callable[..., Forked]
CELLS = ("policy=full,snapkv", "budget=0.2")


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_commands_leave_the_rows_of_one_left_in_peace(
    kills: int, kvbench: Command, fork: Fork, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    """kill -9 at random moments, once with a torn line on top; the same command goes on each time."""
    arguments = ("run", *tiny, *CELLS, f"task.samples={30 * kills}")
    draw, have = random.Random(kills), 0
    for number in range(kills):
        killed = fork(*arguments)
        wait_for_rows(tmp_path / "out", killed, more_than=have)
        time.sleep(draw.uniform(0, 0.1))
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        have = len(read_rows(tmp_path / "out", lambda _: None))
        assert have % 2 == 0
        if number == 0:
            with next((tmp_path / "out" / "rows").iterdir()).open("ab") as torn:
                torn.write(b'{"cell": "0123')
    resumed = kvbench(*arguments)
    assert resumed.code == 0 and "torn last line dropped" in resumed.err
    assert f"({have} rows are there already)" in resumed.err
    assert kvbench(*arguments, "results.dir=peace").code == 0
    with pytest.warns(UserWarning, match="torn last line"):
        assert outcomes(tmp_path / "out") == outcomes(tmp_path / "peace")


@pytest.mark.parametrize(
    ("sent", "code", "said"), [(signal.SIGUSR1, 75, "stopped by SIGUSR1"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_run_that_is_stopped_leaves_whole_samples(
    fork: Fork, tiny: tuple[str, ...], tmp_path: Path, sent: signal.Signals, code: int, said: str
) -> None:
    stopped = fork("run", *tiny, *CELLS, "task.samples=200")
    wait_for_rows(tmp_path / "out", stopped)
    stopped.send_signal(sent)
    _, errors = stopped.communicate()
    assert stopped.returncode == code, errors
    assert said in errors and "run the same command to continue" in errors
    left = read_rows(tmp_path / "out")
    assert 0 < len(left) < 400 and len(left) % 2 == 0
    assert sent == signal.SIGINT or not list((tmp_path / "out" / "leases").iterdir())


@pytest.mark.parametrize("late", ["make", "recorded_rows", "print_sweep"])
def test_a_signal_between_the_last_row_and_the_table_ends_as_a_stopped_run_does(
    late: str, kvbench: Command, fork: Fork, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 75 and a line instead of the signal's own end; the same command then makes no row and prints."""
    real = getattr(sweep, late)

    def signalled(*arguments: Any) -> Any:
        made = real(*arguments) if late == "make" else None
        signal.raise_signal(signal.SIGTERM)
        return made or real(*arguments)

    command = ("run", *tiny, *CELLS)
    with monkeypatch.context() as patch:
        patch.setattr(sweep, late, signalled)
        stopped = fork(*command)
        out, errors = stopped.communicate()
    assert stopped.returncode == 75 and not out, errors
    assert errors.endswith("run the same command to continue\n")
    assert len(read_rows(tmp_path / "out")) == 6
    printed = kvbench(*command)
    assert printed.code == 0 and "all 6 rows are in out" in printed.err and "snapkv" in printed.out


def test_an_error_after_a_signal_is_told() -> None:
    with pytest.raises(UserError, match="disk is gone"), handling(["SIGTERM"], stop_at_once), stopping(["SIGTERM"]):
        signal.raise_signal(signal.SIGTERM)
        raise UserError("disk is gone")


@pytest.mark.parametrize("name", SIGNALS)
def test_signals_are_noted_and_given_back(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever listened before is told in the end, of the first that came."""
    number, heard = signal.Signals[name], []
    before = signal.signal(number, lambda number, frame: heard.append(number))
    try:
        with stopping(SIGNALS) as stop:
            assert stop() is None
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGTERM)
            assert stop() == name and not heard
        assert heard == [number]
        signal.raise_signal(number)
        assert len(heard) == 2
    finally:
        signal.signal(number, before)
    assert capfd.readouterr().err == f"kvbench: {name}: stopping after this sample\n"


def test_a_signal_is_noted_where_nobody_reads_stderr() -> None:
    """An error of the handler would be recorded as that of the sample that is being made."""
    script = """
import os, signal
from kvbench.run.signals import stopping
reads, writes = os.pipe()
os.close(reads)
os.dup2(writes, 2)
with stopping(["SIGUSR1"]) as stop:
    signal.raise_signal(signal.SIGUSR1)
    print(stop())
"""
    ended = subprocess.run(python("-c", script), stdout=subprocess.PIPE, text=True)
    assert ended.stdout == "SIGUSR1\n"
