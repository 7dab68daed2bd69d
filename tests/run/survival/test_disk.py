"""A disk that fills at any write, and files cut anywhere: what is whole stays, and the same command makes the rest."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kvbench.run.cell import Cell
from kvbench.run.plan import plan
from tests.run.survival.faking import ROWS, SAMPLES, SOON, FakeEngine, fork, go, join, leave, outcomes, recorded_twice

Rows = Mapping[tuple[str, int], Any]


def fill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full from the `number`th write on; half of that one goes down."""
    count, usual = 0, os.write

    def full(descriptor: int, data: bytes) -> int:
        nonlocal count
        count += 1
        if count < number or descriptor <= 2:
            return usual(descriptor, data)
        if count > number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return usual(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", full)


@pytest.mark.parametrize("number", [1, 2, 4, 9, 31])
def test_a_disk_that_fills_loses_nothing_that_was_recorded(
    number: int, cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, tmp_path: Path
) -> None:
    def child() -> None:
        with pytest.MonkeyPatch.context() as patch:
            fill_at(number, patch)
            try:
                go(tmp_path, cells)
            except OSError as error:
                leave(3 if error.errno == errno.ENOSPC else 1)

    assert join(fork(child)) == 3
    rows = outcomes(tmp_path)
    assert rows.items() <= peace.items() and len(rows) < ROWS
    go(tmp_path, cells)
    assert outcomes(tmp_path) == peace and not recorded_twice(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 KiB, where the system lets us have one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_leaves_whole_units(
    cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, small_disk: Path, tmp_path: Path
) -> None:
    """It fills, nothing is made of it; with room again the rest is."""
    with pytest.raises(OSError) as error:
        go(small_disk, cells)
    assert error.value.errno == errno.ENOSPC
    rows = outcomes(small_disk)
    assert 0 < len(rows) < ROWS and rows.items() <= peace.items()
    shutil.copytree(small_disk, tmp_path / "larger")
    go(tmp_path / "larger", cells)
    assert outcomes(tmp_path / "larger") == peace


def first_line(data: bytes) -> int:
    return data.find(b"\n") + 1


CUTS: Mapping[str, Callable[[bytes], int]] = {
    "empty": lambda data: 0,
    "one byte": lambda data: 1,
    "inside a line": lambda data: first_line(data) // 2,
    "before a newline": lambda data: first_line(data) - 1,
    "after a newline": first_line,
    "into a second line": lambda data: min(len(data), first_line(data) + 1),
    "half": lambda data: len(data) // 2,
    "last newline": lambda data: len(data) - 1,
}


ROOMS = ("rows", "finished", "kept", "curves", "cells", "environments", "processes", "leases", "sweeps")
WITHIN = ("inside a line", "before a newline")
"""Cuts of files of several lines, which are alike in every room."""
CASES = [case for case in product(ROOMS, CUTS) if case[0] in ("rows", "curves") or case[1] not in WITHIN]
OFTEN = (*WITHIN, "half")
"""The cuts that are tried every time; the others are slow tests."""


@pytest.mark.parametrize(
    ("room", "cut"),
    [pytest.param(*case, marks=() if case[1] in OFTEN else pytest.mark.slow) for case in CASES],
)
def test_a_file_cut_short_is_made_good(
    room: str, cut: str, cells: tuple[Cell, ...], engine: FakeEngine, peace: Rows, tmp_path: Path
) -> None:
    """Every kind of file, cut where a crash of the machine may leave it, after half of a sweep."""
    half = [replace(cell, task=replace(cell.task, samples=5)) for cell in cells]
    sharing = {"cells": {cell.id: SAMPLES for cell in cells}}
    go(tmp_path, half, **sharing)
    if room == "leases":  # of a process on another machine, of which nothing more is heard
        (tmp_path / room / f"{plan(cells, set()).groups[1].key}-1.0").write_text("somebody\n")
    for path in (tmp_path / room).iterdir():
        data = path.read_bytes()
        path.write_bytes(data[: CUTS[cut](data)])
    cut_rows = outcomes(tmp_path)
    assert cut_rows.items() <= peace.items()
    go(tmp_path, cells, lease_seconds=SOON, **sharing)
    assert outcomes(tmp_path) == peace
    if room in ("cells", "sweeps"):
        assert all(json.loads(path.read_bytes()) for path in (tmp_path / room).iterdir())
