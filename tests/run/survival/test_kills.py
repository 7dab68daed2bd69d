"""A hundred deaths at random touches of the disk: whole units are left, in the end the rows of an undisturbed run."""

import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvbench.records import read_rows
from kvbench.run.plan import Cell
from tests.run.survival.faking import FakeEngine, die_at, fork, go, join, outcomes, recorded_twice

KILLS, FOLDERS = 100, 10


def killed(folder: Path, cells: tuple[Cell, ...], seed: int) -> int:
    """Start a run that is killed somewhere, early or late; its exit code."""

    def child() -> None:
        with pytest.MonkeyPatch.context() as patch:
            die_at(int(10 ** random.Random(seed).uniform(0, 2.7)), seed, patch)
            go(folder, cells)

    return join(fork(child))


@pytest.mark.parametrize("number", range(FOLDERS))
def test_kills_cost_no_row_and_double_none(
    number: int, cells: tuple[Cell, ...], engine: FakeEngine, peace: Mapping[tuple[str, int], Any], tmp_path: Path
) -> None:
    kills, seed = 0, number * 1000
    folder = tmp_path / "0"
    while kills < KILLS // FOLDERS:
        seed += 1
        code = killed(folder, cells, seed)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        rows = outcomes(folder)
        assert rows.items() <= peace.items() and not recorded_twice(folder)
        if code == 0:  # it had less left to do than it took to be killed: on with another folder
            assert rows == peace
            folder = tmp_path / str(seed)
    go(folder, cells)
    assert outcomes(folder) == peace and not recorded_twice(folder)
    warned: list[str] = []
    read_rows(folder, warned.append)
    assert all("torn last line dropped" in text for text in warned)
