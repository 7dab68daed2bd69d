import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from kvbench.records import Recorder, Row, read_rows
from kvbench.support.errors import MissingFile

ROOT = Path(__file__).resolve().parents[2]
UNIT = 5
WRITER = f"""
import sys
from kvbench.records import Recorder, Row
asked = dict(model="m", task="t", task_version=None, context_length=None, policy="p", score=None, budget="1.0",
             variant=None, layout=None, schedule=None, seed=None)
with Recorder(sys.argv[1]) as recorder:
    for sample in range(int(sys.argv[2])):
        recorder.append([Row(cell=f"{{sys.argv[3]}}{{i}}", sample=sample, prediction="x" * 100, value=1.0, **asked)
                         for i in range({UNIT})])
        print(sample, flush=True)
"""


def writer(folder: Path, samples: int, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(samples), name],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def units(rows: list[Row]) -> list[int]:
    """How many rows of each sample are there, in the order of the samples."""
    samples = [row.sample for row in rows]
    return [samples.count(sample) for sample in sorted(set(samples))]


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_writer_leaves_whole_units(tmp_path: Path, seed: int) -> None:
    process = writer(tmp_path, 10**9, "w")
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    time.sleep(random.Random(seed).uniform(0, 0.05))
    process.send_signal(signal.SIGKILL)
    printed = process.stdout.read().split()
    process.wait()
    warnings: list[str] = []
    counts = units(read_rows(tmp_path, warnings.append))
    assert len(counts) >= 1 + len(printed)  # what was reported as recorded is there
    assert counts[:-1] == [UNIT] * (len(counts) - 1)
    assert counts[-1] == UNIT or warnings  # the kernel may cut a write that spans two pages
    assert len(warnings) <= 1


def test_two_writers_never_tear_each_others_lines(tmp_path: Path) -> None:
    processes = [writer(tmp_path, 20, name) for name in "ab"]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert len(list((tmp_path / "rows").iterdir())) == 2
    rows = read_rows(tmp_path)
    assert units(rows) == [2 * UNIT] * 20


def test_nothing_recorded_leaves_nothing(tmp_path: Path) -> None:
    with Recorder(tmp_path / "runs") as recorder:
        recorder.append([])
    assert list(tmp_path.iterdir()) == [] and read_rows(tmp_path / "runs") == []


def test_a_unit_is_readable_as_soon_as_append_returns(tmp_path: Path, make) -> None:
    with Recorder(tmp_path) as recorder:
        for sample in range(3):
            recorder.append([make("ab", sample), make("cd", sample)])
            assert len(read_rows(tmp_path)) == 2 * (sample + 1)


def test_a_short_write_is_taken_back_and_said(tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=0)])
        monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[: len(data) // 2]))
        with pytest.raises(OSError, match="2 rows not recorded") as error:
            recorder.append([make(sample=1), make(sample=2)])
        assert error.value.errno == errno.ENOSPC and error.value.filename == str(recorder.path)
        monkeypatch.undo()
        assert [row.sample for row in read_rows(tmp_path)] == [0]
        recorder.append([make(sample=3)])
    assert [row.sample for row in read_rows(tmp_path)] == [0, 3]


def test_rows_that_did_not_reach_the_disk_are_taken_back(tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "disk gone")

    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=0)])
        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="disk gone: 1 row not recorded"):
            recorder.append([make(sample=1)])
    assert [row.sample for row in read_rows(tmp_path)] == [0]


def test_an_interrupt_while_rows_are_synced_costs_none(tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are on disk, but not yet counted: what the writer notes as it ends must not say that they are lost."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), Recorder(tmp_path) as recorder:
        recorder.append([make()])

        def interrupted(descriptor: int) -> None:
            raise KeyboardInterrupt

        patch.setattr("os.fsync", interrupted)
        recorder.append([make(sample=1)])
    assert [row.sample for row in read_rows(tmp_path, pytest.fail)] == [0, 1]


def test_recorders_of_the_same_instant_have_files_of_their_own(
    tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2026, 1, 2, 3, 4, 5, 6)

    monkeypatch.setattr("kvbench.records.folder.datetime", Stopped)
    with Recorder(tmp_path) as first, Recorder(tmp_path) as second:
        first.append([make(sample=0)])
        second.append([make(sample=1)])
        first.append([make(sample=2)])
    names = [path.name for path in (tmp_path / "rows").iterdir()]
    assert len(names) == 2 and all(name.startswith("20260102T030405.000006Z-") for name in names)
    assert {row.sample for row in read_rows(tmp_path)} == {0, 1, 2}


def test_a_full_disk_leaves_whole_units(tmp_path: Path, make) -> None:
    """A limit on the size of files stops a real write in the middle of a unit."""
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=0)])
        assert recorder.path is not None
        size = recorder.path.stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, before[1]))
            with pytest.raises(OSError, match="not recorded"):
                recorder.append([make(sample=1)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert recorder.path.stat().st_size == size


def test_lines_beside_rows_share_their_file_name_and_their_fate(
    tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written first, and taken back together."""
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=0)], {"kept": ["a"], "empty": []})
        assert recorder.path is not None
        beside = tmp_path / "kept" / recorder.path.name
        whole, written = os.write, []

        def short(descriptor: int, data: bytes) -> int:
            written.append(data)
            return whole(descriptor, data[: len(data) // 2] if len(written) == 2 else data)

        monkeypatch.setattr(os, "write", short)
        with pytest.raises(OSError, match="1 row not recorded"):
            recorder.append([make(sample=1)], {"kept": ["b"]})
        monkeypatch.undo()
        assert written[0] == b"b\n" and beside.read_text() == "a\n"
        recorder.append([make(sample=2)], {"kept": ["c"]})
    assert beside.read_text() == "a\nc\n" and not (tmp_path / "empty").exists()
    assert [row.sample for row in read_rows(tmp_path)] == [0, 2]


@pytest.mark.parametrize("change", ["file", "rows", "folder", "moved", "replaced"])
def test_rows_are_not_written_to_a_file_that_is_gone(tmp_path: Path, make, change: str) -> None:
    results = tmp_path / "runs"
    with Recorder(results) as recorder:
        recorder.append([make(sample=0)])
        assert recorder.path is not None
        if change == "file":
            recorder.path.unlink()
        elif change == "moved":
            (results / "rows").rename(results / "elsewhere")
        elif change == "replaced":
            copy = results / "copy"
            shutil.copy(recorder.path, copy)
            copy.replace(recorder.path)
        else:
            shutil.rmtree(results / "rows" if change == "rows" else results)
        with pytest.raises(MissingFile, match="was removed, moved or replaced while rows were written"):
            recorder.append([make(sample=1)])
    assert not list(results.rglob("finished/*"))
    with Recorder(results) as again:
        again.append([make(sample=sample) for sample in range(2)])
    assert [row.sample for row in read_rows(results)] == [0, 1]
