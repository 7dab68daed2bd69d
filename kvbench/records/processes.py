"""The processes that work on a results folder: `processes/<utc>-<host>-<pid>-<n>.json`, rewritten at every heartbeat.

Whether a process is alive is never decided by comparing the clocks of two machines. The file holds a number that
changes with every heartbeat; another process watches it with a clock of its own (`Watch`). On the same machine the
operating system is asked.
"""

import fcntl
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvbench.records.folder import ResultsFolder, create, create_exclusive, write_all
from kvbench.records.lines import Warn, listed, read_json
from kvbench.records.row import has_checksum, with_checksum
from kvbench.support.errors import UserError, naming

PROCESSES = "processes"
CANCEL = ".cancel"
"""The suffix of a file that asks the process of the same name to stop."""
LOCK = ".lock"
"""The suffix of a file that names the process of the same name, which has locked it while it runs."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """The file of a process.

    machine: a name that no other machine or container has, None if the system has none. born: when the system started
    the process, in the system's own count. devices: GPUs that it holds, 1 / n of one that n processes share, or 1 for a
    processor. lease_seconds: how long it may be silent and keep its leases. units: prefill jobs recorded. ended: how it
    ended, None while it runs or if it was killed. joules: its part of the energy of its devices until the last
    heartbeat, if they report it. loading: seconds until each model was loaded, by its label: for the first from the
    begin of the run on.
    """

    name: str
    host: str
    pid: int
    machine: str | None
    born: str | None
    job: str | None
    devices: int | float
    lease_seconds: float
    started_utc: str
    beat_utc: str
    beat: int = 0
    units: int = 0
    rows: int = 0
    errors: int = 0
    command: tuple[str, ...] = ()
    ended: str | None = None
    joules: float | None = None
    loading: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = (self.pid, self.devices, self.beat, self.units, self.rows, self.errors)
        if not all(0 <= count < 2**63 for count in counts):
            raise UserError(f"one of its numbers {counts} is not in 0..2^63-1")
        if not all(map(math.isfinite, (self.lease_seconds, self.joules or 0.0, *self.loading.values()))):
            raise UserError("lease_seconds, joules and loading are finite numbers")

    @property
    def seconds(self) -> float:
        """From its start to its last heartbeat, by its own clock."""
        return (datetime.fromisoformat(self.beat_utc) - datetime.fromisoformat(self.started_utc)).total_seconds()

    @property
    def here(self) -> bool:
        """Whether it runs, or ran, on the machine of this process."""
        return is_here(self.machine)

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended: its file says so, or it ran here and the system does not list it."""
        return self.ended is not None or is_gone(self.machine, self.pid, self.born)

    def works_on(self, folder: ResultsFolder) -> bool:
        """Return whether a process of this user here holds the lock of this name: the file alone could name any
        process.
        """
        proc, lock = Path("/proc", str(self.pid)), folder.path / PROCESSES / f"{self.name}{LOCK}"
        try:
            if proc.stat().st_uid != os.geteuid():
                return False
            opened = [link.name for link in (proc / "fd").iterdir() if _same(link, lock)]
            return any("FLOCK" in (proc / "fdinfo" / name).read_text() for name in opened)
        except OSError:
            return False

    @classmethod
    def read(cls, path: Path) -> "Process | None":
        """Return the process of a file; None if there is none, or a damaged one, or one that no process wrote.

        A name may lead to other files, and a pid below 1 means many processes.
        """
        try:
            process = read_json(cls, path, "a process")
            if not has_checksum(path.read_bytes().removesuffix(b"\n")):
                return None
            zoned = all(datetime.fromisoformat(at).tzinfo for at in (process.started_utc, process.beat_utc))
        except (OSError, ValueError):
            return None
        return process if zoned and process.name == path.stem and process.pid > 0 else None


def read_processes(folder: str | os.PathLike[str], warn: Warn = lambda text: None) -> list[Process]:
    """Return all processes of a folder, by the time they started. Files that are damaged go to ``warn``."""
    processes = []
    for path in listed(ResultsFolder(folder).path / PROCESSES, ".json"):
        process = Process.read(path)
        if process is not None:
            processes.append(process)
        elif not path.is_file() or path.stat().st_size:  # empty while its process starts
            warn(f"{path} is damaged, or no process wrote it: not counted; remove it")
    return processes


def _same(link: Path, lock: Path) -> bool:
    try:
        return os.path.samestat(link.stat(), lock.lstat())
    except OSError:  # closed meanwhile
        return False


def machine() -> str | None:
    """Return a boot of a machine and a namespace of process numbers, in which its containers differ."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def born(pid: int) -> str | None:
    """Return when the system started a process; None if it does not run. With the number it names a process
    uniquely.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else rest[18]


def is_here(name: str | None) -> bool:
    """Return whether a machine, as `machine` names it, is this process's."""
    return name is not None and name == machine()


def is_gone(machine: str | None, pid: int, start: str | None) -> bool:
    """Return whether a process that the system began at `start` ran on this machine and is no longer listed."""
    return is_here(machine) and (start is None or born(pid) != start)


def awake() -> float:
    """Return seconds on a clock that never jumps and, if the system has one, also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def _now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Watch:
    """Judges whether others are alive: a heartbeat that is unchanged for `seconds` of our own time has stopped."""

    def __init__(self, folder: ResultsFolder, seconds: float, clock: Callable[[], float] = awake) -> None:
        self._folder, self._seconds, self._clock = folder.path / PROCESSES, seconds, clock
        self._beats: dict[str, tuple[int | None, float]] = {}

    def stopped(self, name: str) -> bool:
        """Return whether a process has ended or stopped. A file that cannot be read counts as an unchanged
        heartbeat.
        """
        process, now = Process.read(self._folder / f"{name}.json"), self._clock()
        if process is not None and process.has_ended:
            return True
        beat = None if process is None else process.beat
        before, since = self._beats.get(name, (object(), now))
        if before != beat:
            self._beats[name] = (beat, now)
            return False
        return now - since >= self._seconds


@dataclass
class Heartbeat:
    """The file of this process: created by the first `start`, rewritten every `every` seconds by a thread, then ended.

    last: when the last heartbeat was written. breaks: how often one came late.
    """

    folder: ResultsFolder
    every: float
    lease_seconds: float
    devices: int | float = 1
    command: tuple[str, ...] = ()
    joules: Callable[[], float] | None = None
    last: float = 0.0
    breaks: int = 0
    process: Process | None = None
    cancelled: bool = False
    _path: Path | None = None
    _lock_file: int | None = None
    _joules_before: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> str:
        """Create the file, once; returns the name of this process."""
        if self.process is None:
            self._joules_before = 0.0 if self.joules is None else self.joules()
            descriptor, path = create_exclusive(self.folder.path / PROCESSES, ".json")
            try:
                with naming(path):
                    os.close(descriptor)
                    self._lock_file = create(path.with_suffix(LOCK))
                    with suppress(OSError):  # a file system without locks
                        fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._path, process = path, self._describe(path.stem)
                    write_all(self._lock_file, signature(process))
                    os.fsync(self._lock_file)  # other machines read it as soon as a lease is a link to it
                    self._write(process)
            except OSError:  # nobody works here: no name may say so
                for suffix in (".json", LOCK):
                    with suppress(OSError):
                        path.with_suffix(suffix).unlink(missing_ok=True)
                raise
            self.process = process
            threading.Thread(target=self._beat, name="kvbench heartbeat", daemon=True).start()
        return self.process.name

    def _describe(self, name: str) -> Process:
        """Return this process, as it starts."""
        now = _now_utc()
        return Process(
            name=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            machine=machine(),
            born=born(os.getpid()),
            job=_slurm_job(),
            devices=self.devices,
            lease_seconds=self.lease_seconds,
            started_utc=now,
            beat_utc=now,
            command=self.command,
        )

    @property
    def signature_file(self) -> Path:
        """The file that holds the `signature` of this process."""
        assert self._path is not None
        return self._path.with_suffix(LOCK)

    def count(self, rows: int, errors: int) -> None:
        """Count a recorded prefill job; written with the next heartbeat."""
        assert self.process is not None
        with self._lock:
            units, rows, errors = self.process.units + 1, self.process.rows + rows, self.process.errors + errors
            self.process = replace(self.process, units=units, rows=rows, errors=errors)

    def loaded(self, model: str, seconds: float) -> None:
        """Record how long a model took to load; written with the next heartbeat."""
        assert self.process is not None
        with self._lock:
            self.process = replace(self.process, loading={**self.process.loading, model: seconds})

    def end(self, how: str) -> None:
        """Record how the process ended; heartbeats stop."""
        self._ended.set()
        if self.process is not None and self.process.ended is None:
            self._rewrite(ended=how)
            assert self._path is not None and self._lock_file is not None
            for suffix in (CANCEL, LOCK):
                self._path.with_suffix(suffix).unlink(missing_ok=True)
            with suppress(OSError):  # its content is no longer needed
                os.close(self._lock_file)

    def _beat(self) -> None:
        assert self._path is not None
        while not self._ended.wait(self.every):
            self._rewrite()
            self.cancelled = self.cancelled or self._path.with_suffix(CANCEL).exists()

    def _rewrite(self, **changes: Any) -> None:
        """Rewrite the file. If the disk is full or away, this heartbeat is lost; the next one may be written again."""
        with self._lock:
            assert self.process is not None
            if self._ended.is_set() and not changes:
                return
            joules = None if self.joules is None else self.joules() - self._joules_before
            beat = self.process.beat + 1
            self.process = replace(self.process, beat=beat, beat_utc=_now_utc(), joules=joules, **changes)
            with suppress(OSError):
                self._write(self.process)

    def _write(self, process: Process) -> None:
        assert self._path is not None
        temporary = self._path.with_suffix(".tmp")  # no other process has this name
        try:
            temporary.write_text(with_checksum(json.dumps(asdict(process))) + "\n", "ascii")
            os.replace(temporary, self._path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self.note_heartbeat(awake())

    def note_heartbeat(self, now: float) -> None:
        """Note that a heartbeat was written. A late one is a break: meanwhile others may have judged us stopped."""
        self.breaks += now - self.last >= self.lease_seconds / 2
        self.last = now


def signature(process: Process) -> bytes:
    """Return two lines: the name of a process; and its machine, number and start, which no other has and `is_gone`
    takes.
    """
    return f"{process.name}\n{json.dumps((process.machine, process.pid, process.born))}\n".encode()


def _slurm_job() -> str | None:
    """Return the SLURM job, or task of an array, of this process, as squeue names it."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}" if array else os.environ.get("SLURM_JOB_ID")


def request_cancel(folder: ResultsFolder, process: Process) -> None:
    """Ask a process to stop after its current prefill job; it looks at every heartbeat.

    Raises UserError for a link in the way, which a folder of others may lead anywhere.
    """
    path = folder.path / PROCESSES / f"{process.name}{CANCEL}"
    try:
        with naming(path):
            os.close(create(path))
    except FileExistsError:
        if path.is_symlink():
            raise UserError(f"{path} is a link: remove it") from None
