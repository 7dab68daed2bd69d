"""Leases step by step, with a clock of our own: who gets a unit, when, and what wrong clocks of others can do."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvbench.records import (
    Arrivals,
    Heartbeat,
    Lease,
    Leases,
    Process,
    Recorder,
    ResultsFolder,
    file_sizes,
    read_processes,
)
from kvbench.records.processes import Watch, born, machine, signature
from kvbench.records.row import with_checksum

SECONDS = 100.0


class Clock:
    """Goes when told."""

    now = 5.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """A process of another machine, as far as files tell: its own clock, its own heartbeat."""

    def __init__(self, folder: Path, name: str) -> None:
        self.clock, self.heart = Clock(), Heartbeat(ResultsFolder(folder), 10**6, SECONDS)
        self.path = folder / "processes" / f"{self.heart.start()}.json"
        self.leases = Leases(ResultsFolder(folder), self.heart, SECONDS, self.clock)
        self.heart.last = self.clock()
        self.says(machine=name)

    def says(self, **changes: object) -> None:
        assert self.heart.process is not None
        self.heart.process = replace(self.heart.process, **changes)  # type: ignore[arg-type]
        self.path.write_text(with_checksum(json.dumps(asdict(self.heart.process))))
        self.heart.signature_file.unlink(missing_ok=True)  # leases are other names of the file of before
        self.heart.signature_file.write_bytes(signature(self.heart.process))

    def beats(self) -> None:
        assert self.heart.process is not None
        self.says(beat=self.heart.process.beat + 1)
        self.heart.note_heartbeat(self.clock())


Three = tuple[Worker, Worker, Worker]


@pytest.fixture
def three(tmp_path: Path) -> Three:
    return Worker(tmp_path, "a"), Worker(tmp_path, "b"), Worker(tmp_path, "c")


def names(worker: Worker) -> list[str]:
    return sorted(path.name for path in (worker.path.parents[1] / "leases").iterdir())


def test_one_gets_a_unit_and_others_after_its_release(three: Three) -> None:
    first, second, _ = three
    lease = first.leases.claim("u-1")
    assert lease == Lease("u-1", 0) and second.leases.claim("u-1") is None
    assert second.leases.holder("u-1") == first.heart.start()
    assert second.leases.claim("u-10") == Lease("u-10", 0)  # another unit, whose name begins alike
    first.leases.release(lease)
    assert second.leases.holder("u-1") is None and second.leases.claim("u-1") == Lease("u-1", 0)


@pytest.mark.parametrize("skew", ["2001-01-01T00:00:00.000+00:00", "2099-01-01T00:00:00.000+00:00"])
def test_silence_is_measured_by_the_watcher(skew: str, three: Three) -> None:
    """However wrong the clock of the other: a heart that beats lives, one that is silent for long enough does not."""
    first, second, _ = three
    assert first.leases.claim("u-1")
    for _ in range(5):
        first.says(beat_utc=skew)
        first.beats()
        assert second.leases.claim("u-1") is None
        second.clock.now += SECONDS - 1
    assert second.leases.claim("u-1") is None  # one second is wanting
    second.clock.now += 1
    assert second.leases.claim("u-1") == Lease("u-1", 1)


def test_of_two_that_take_over_one_does(three: Three) -> None:
    first, second, third = three
    assert first.leases.claim("u-1")
    for other in (second, third):
        assert other.leases.claim("u-1") is None
        other.clock.now += SECONDS
    assert second.leases.claim("u-1") == Lease("u-1", 1)
    assert third.leases.claim("u-1") is None  # it sees a new owner, whose silence begins now
    assert third.leases._create_after("u-1", 0, first.heart.start()) is None  # and if its listing was old
    second.leases.release(Lease("u-1", 1))
    assert names(first) == []


def test_a_judgement_that_is_late_steps_back(three: Three) -> None:
    """The stale lease it judged is gone, or another's: the unit was made and is free, or made anew."""
    first, second, third = three
    lease = first.leases.claim("u-1")
    assert lease is not None
    first.leases.release(lease)
    assert third.leases._create_after("u-1", 0, first.heart.start()) is None and names(first) == []
    assert second.leases.claim("u-1")
    assert third.leases._create_after("u-1", 0, first.heart.start()) is None and names(first) == ["u-1.0"]


def test_who_slept_is_not_sure_and_learns_what_happened(three: Three) -> None:
    first, second, _ = three
    lease = first.leases.claim("u-1")
    assert lease is not None and first.leases.sure(lease)
    first.clock.now += SECONDS / 2
    assert not first.leases.sure(lease)
    first.beats()  # the heart may wake before who asks
    assert not first.leases.sure(lease)
    assert first.leases.renew(lease) == Lease("u-1", 1) and second.leases.claim("u-1") is None
    second.clock.now += SECONDS
    assert second.leases.claim("u-1") == Lease("u-1", 2)
    assert first.leases.renew(Lease("u-1", 1)) is None
    first.leases.release(Lease("u-1", 0))  # of what it had before, at most: never the lease of another
    assert "u-1.2" in names(second)


def test_a_lease_that_names_nobody_is_waited_for(tmp_path: Path) -> None:
    """Its maker died between making and naming; or the file was cut."""
    worker = Worker(tmp_path, "b")
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "u-1.0").touch()
    assert worker.leases.claim("u-1") is None
    worker.clock.now += SECONDS
    assert worker.leases.claim("u-1") == Lease("u-1", 1)


def test_the_dead_of_this_machine_are_known_at_once(tmp_path: Path) -> None:
    first, second = Worker(tmp_path, "x"), Worker(tmp_path, "y")
    first.leases.claim("u-1")
    first.says(machine=machine(), pid=os.getpid(), born=born(os.getpid()))
    assert second.leases.claim("u-1") is None
    first.says(born="1")  # the number is another process's now
    assert second.leases.claim("u-1") == Lease("u-1", 1)
    first.says(machine="y", born="1")
    assert not Watch(ResultsFolder(tmp_path), SECONDS).stopped(first.path.stem)  # of another machine nothing is known
    first.says(ended="finished")
    assert Watch(ResultsFolder(tmp_path), SECONDS).stopped(first.path.stem)


@pytest.mark.parametrize("file", ["removed", "cut"])
def test_an_orphan_lease_of_this_machine_is_free_at_once_without_its_owners_file(tmp_path: Path, file: str) -> None:
    first, second = Worker(tmp_path, "x"), Worker(tmp_path, "y")
    first.says(machine=machine(), pid=os.getpid(), born=born(os.getpid()))
    assert first.leases.claim("u-1") and first.leases.claim("u-2")
    first.says(machine=machine(), pid=os.getpid(), born="1")  # the number is another process's now
    assert first.leases.claim("u-3")
    first.says(machine="of another boot", born="1")
    assert first.leases.claim("u-4")
    first.path.unlink() if file == "removed" else first.path.write_text("{")
    assert second.leases.claim("u-1") is None  # its owner is this process, which runs
    assert second.leases.claim("u-3") == Lease("u-3", 1)
    assert second.leases.claim("u-4") is None  # of another machine nothing is known
    (tmp_path / "leases" / "u-2.0").unlink()
    (tmp_path / "leases" / "u-2.0").write_text(f"{first.path.stem}\n[3")
    assert second.leases.claim("u-2") is None  # a damaged line names no process
    second.clock.now += SECONDS
    assert second.leases.claim("u-4") == Lease("u-4", 1)


def test_a_process_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    heart = Heartbeat(ResultsFolder(tmp_path), 0.01, SECONDS, 2, ("a=b",))
    name = heart.start()
    assert heart.start() == name
    heart.count(3, 1)
    heart.end("finished")
    process = Process.read(tmp_path / "processes" / f"{name}.json")
    assert process is not None and process == heart.process
    assert (process.pid, process.job, process.devices, process.command) == (os.getpid(), "7", 2, ("a=b",))
    assert (process.units, process.rows, process.errors, process.ended) == (1, 3, 1, "finished")
    assert process.has_ended and process.seconds >= 0


def test_a_process_file_without_its_checksum_is_told_and_not_counted(tmp_path: Path) -> None:
    heart = Heartbeat(ResultsFolder(tmp_path), 10**6, SECONDS)
    path = tmp_path / "processes" / f"{heart.start()}.json"
    heart.end("finished")
    assert [process.name for process in read_processes(tmp_path, pytest.fail)] == [path.stem]
    whole, mark, end = path.read_text().rpartition(', "checksum": ')
    assert mark
    for text in (f"{whole}}}\n", whole.replace('"rows": 0', '"rows": 7') + mark + end):
        path.write_text(text)
        warnings: list[str] = []
        assert read_processes(tmp_path, warnings.append) == []
        assert warnings == [f"{path} is damaged, or no process wrote it: not counted; remove it"]


def test_what_is_no_generation_is_no_lease(three: Three) -> None:
    """A number of thirty digits kept a release busy for ever."""
    first, *_ = three
    (first.path.parents[1] / "leases").mkdir()
    others = sorted(["u-1." + "9" * 30, "u-1.01", "u-1.\u0662", "u-1.", "u-1.-1", "u-1.1e9"])
    for name in others:
        (first.path.parents[1] / "leases" / name).write_text("somebody")
    lease = first.leases.claim("u-1")
    assert lease == Lease("u-1", 0)
    first.leases.release(lease)
    assert names(first) == others


@pytest.mark.parametrize(("make", "stays"), [(os.mkfifo, []), (os.mkdir, ["u-1.123456789"])])
def test_a_fifo_or_a_folder_in_the_place_of_a_lease_ends_like_others(
    make: Callable[[Path], None], stays: list[str], three: Three
) -> None:
    """Of a large generation."""
    first, second, _ = three
    (first.path.parents[1] / "leases").mkdir()
    make(first.path.parents[1] / "leases" / "u-1.123456789")
    assert first.leases.claim("u-1") is None and str(first.leases.holder("u-1")).endswith("leases/u-1.123456789")
    first.clock.now += SECONDS
    first.heart.note_heartbeat(first.clock())
    lease = first.leases.claim("u-1")
    assert lease == Lease("u-1", 123456790) and second.leases.claim("u-1") is None
    first.leases.release(lease)
    assert names(first) == stays


def test_arrivals_are_whole_lines_after_the_start(tmp_path: Path, make) -> None:
    with Recorder(tmp_path) as other, Recorder(tmp_path) as own:
        other.append([make("ab", 0)])
        (tmp_path / "rows" / "left.look").touch()  # of a look that failed
        arrivals = Arrivals(ResultsFolder(tmp_path), file_sizes(tmp_path))
        arrivals.poll()
        assert arrivals.recorded == set()
        other.append([make("ab", 1)])
        own.append([make("ab", 2)])
        arrivals.poll(own.path)
        assert arrivals.recorded == {("ab", 1)}
        assert other.path is not None
        line = make("ab", 3).to_json()
        with other.path.open("a") as file:
            file.write(line[:50])
            file.flush()
            arrivals.poll()
            assert ("ab", 3) not in arrivals.recorded
            file.write(f"{line[50:]}\n")
        arrivals.poll()
        assert arrivals.recorded == {("ab", 1), ("ab", 2), ("ab", 3)}
    assert {path.suffix for path in (tmp_path / "rows").iterdir()} == {".jsonl"}


def test_a_full_disk_leaves_no_lease_of_nobody(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = three

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", without_links)
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            first.leases.claim("u-1")
    assert second.leases.claim("u-1") == Lease("u-1", 0)


def without_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_leases_without_hard_links_name_their_owner_too(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = three
    assert first.leases.claim("u-1") == Lease("u-1", 0)
    monkeypatch.setattr(os, "link", without_links)
    assert first.leases.claim("u-2") == Lease("u-2", 0)
    one, other = ((first.path.parents[1] / "leases" / name).read_bytes() for name in ("u-1.0", "u-2.0"))
    assert one.split(b"\n")[0] == other.split(b"\n")[0] == first.path.stem.encode()
    assert second.leases.claim("u-1") is second.leases.claim("u-2") is None


@pytest.mark.parametrize("kind", [OSError, FileExistsError])
def test_a_lease_that_was_made_is_ours_whatever_the_disk_says(
    kind: type[OSError], three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = three
    usual = os.link

    def made(*arguments: Path) -> None:
        usual(*arguments)
        raise kind(errno.EIO if kind is OSError else errno.EEXIST, "made")

    monkeypatch.setattr(os, "link", made)
    lease = first.leases.claim("u-1")
    assert lease == Lease("u-1", 0)
    assert second.leases.claim("u-1") is None
    first.leases.release(lease)
    assert names(first) == []
