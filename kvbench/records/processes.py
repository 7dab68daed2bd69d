"""Who works on a results folder: `processes/<utc>-<host>-<pid>-<n>.json`, a file a process, rewritten as it goes on.

Whether a process lives is never told by comparing clocks of two machines. The file carries a number that changes with
every heartbeat; whoever doubts watches it with a clock of its own (`Watch`). On the same machine the system is asked.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from kvbench.records.folder import ResultsFolder, create_exclusive

ROOM = "processes"
CANCEL = ".cancel"
"""A file of this ending beside its own asks a process of another machine to stop."""


class Stopped(Exception):
    """A run was asked to stop, by the signal that this names, and did so between two units."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """What a process says about itself. `ended` is how it ended, None while it runs or where it could not say.

    machine: a name no other machine and no other container has, None where the system tells none. born: when the
    system started this process, in its own count. devices: how many GPUs it holds, or 1 for a processor.
    lease_seconds: how long it may be silent and keep its units. joules: energy of its devices until the last heartbeat,
    where they tell it.
    """

    name: str
    host: str
    pid: int
    machine: str | None
    born: str | None
    job: str | None
    devices: int
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

    @property
    def seconds(self) -> float:
        """From its start to its last heartbeat, both by its own clock."""
        return (datetime.fromisoformat(self.beat_utc) - datetime.fromisoformat(self.started_utc)).total_seconds()

    @property
    def here(self) -> bool:
        """Whether it runs, or ran, where this process runs."""
        return self.machine is not None and self.machine == machine()

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended: it said so, or it ran here and the system knows it no more."""
        return self.ended is not None or (self.here and (self.born is None or born(self.pid) != self.born))

    @classmethod
    def read(cls, path: Path) -> "Process | None":
        """What a file says; None where there is none, or none that is whole and that a process wrote.

        The file of others may say anything: a name leads to files, and a number below 1 would be many processes.
        """
        try:
            data = json.loads(path.read_bytes())
            known: dict[str, Any] = {one.name: data[one.name] for one in fields(cls) if one.name in data}
            found = cls(**{**known, "command": tuple(known.get("command", ()))})
            _ = found.seconds  # its times are times
            return found if _typed(found) and found.name == path.stem and found.pid > 0 else None
        except (OSError, ValueError, TypeError, RecursionError):
            return None


def _typed(process: Process) -> bool:
    """Whether the fields hold what they must; a whole number will do for another one."""
    held = {one: getattr(process, one.name) for one in fields(process) if one.name != "command"}
    return all(
        isinstance(value, one.type) or (isinstance(value, int) and isinstance(0.0, one.type))  # type: ignore[arg-type]
        for one, value in held.items()
    )


def read_processes(folder: str | os.PathLike[str]) -> list[Process]:
    """All processes that a folder knows, by the time they started."""
    paths = sorted((ResultsFolder(folder).path / ROOM).glob("*.json"))
    return [process for path in paths if (process := Process.read(path)) is not None]


def machine() -> str | None:
    """One boot of one machine and one numbering of its processes: containers of one machine differ in the second."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def born(pid: int) -> str | None:
    """When the system started a process; None where it runs no more. With the number it names one process for ever."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else rest[18]


def awake() -> float:
    """Seconds on a clock that never jumps and goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def now_utc() -> str:
    """The time of this machine, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Watch:
    """Whether others live: a heartbeat that has not changed for `seconds` of our own time has stopped."""

    def __init__(self, folder: ResultsFolder, seconds: float, clock: Callable[[], float] = awake) -> None:
        self._room, self._seconds, self._clock = folder.path / ROOM, seconds, clock
        self._seen: dict[str, tuple[int | None, float]] = {}

    def stopped(self, name: str) -> bool:
        """Whether a process has ended or stopped. A file that cannot be read is a heartbeat that does not change."""
        process, now = Process.read(self._room / f"{name}.json"), self._clock()
        if process is not None and process.gone:
            return True
        beat = None if process is None else process.beat
        before, since = self._seen.get(name, (object(), now))
        if before != beat:
            self._seen[name] = (beat, now)
            return False
        return now - since >= self._seconds


@dataclass
class Heartbeat:
    """This process's own file: made by the first `start`, rewritten every `every` seconds by a thread, then ended."""

    folder: ResultsFolder
    every: float
    lease_seconds: float
    devices: int = 1
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    joules: Callable[[], float] | None = None
    last: float = 0.0
    breaks: int = 0
    process: Process | None = None
    cancelled: bool = False
    _path: Path | None = None
    _before: float = 0.0
    _enough: threading.Event = field(default_factory=threading.Event)
    _one: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> str:
        """Begin, once; returns the name of this process."""
        if self.process is None:
            self._before = 0.0 if self.joules is None else self.joules()
            descriptor, made = create_exclusive(self.folder.path / ROOM, ".json")
            os.close(descriptor)
            now = now_utc()
            self._path, self.process = (
                made,
                Process(
                    name=made.stem,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    machine=machine(),
                    born=born(os.getpid()),
                    job=slurm_job(self.variables),
                    devices=self.devices,
                    lease_seconds=self.lease_seconds,
                    started_utc=now,
                    beat_utc=now,
                    command=self.command,
                ),
            )
            self._write(self.process)
            threading.Thread(target=self._beat, name="kvbench heartbeat", daemon=True).start()
        return self.process.name

    def count(self, rows: int, errors: int) -> None:
        """One more unit was recorded; said with the next heartbeat."""
        assert self.process is not None
        with self._one:
            process = self.process
            self.process = replace(
                process, units=process.units + 1, rows=process.rows + rows, errors=process.errors + errors
            )

    def end(self, how: str) -> None:
        """Say how it ended; heartbeats stop."""
        self._enough.set()
        if self.process is not None and self.process.ended is None:
            self._say(ended=how)
            assert self._path is not None
            self._path.with_suffix(CANCEL).unlink(missing_ok=True)

    def _beat(self) -> None:
        assert self._path is not None
        while not self._enough.wait(self.every):
            self._say()
            self.cancelled = self.cancelled or self._path.with_suffix(CANCEL).exists()

    def _say(self, **changes: Any) -> None:
        """Rewrite the file. A disk that is full or away silences the heart; the next beat may be heard again."""
        with self._one:
            assert self.process is not None
            if self._enough.is_set() and not changes:
                return
            spent = None if self.joules is None else self.joules() - self._before
            self.process = replace(
                self.process, beat=self.process.beat + 1, beat_utc=now_utc(), joules=spent, **changes
            )
            with suppress(OSError):
                self._write(self.process)

    def _write(self, process: Process) -> None:
        assert self._path is not None
        temporary = self._path.with_suffix(".tmp")  # this process's alone, like the name
        temporary.write_text(json.dumps(asdict(process)) + "\n", "ascii")
        os.replace(temporary, self._path)
        self.heard(awake())

    def heard(self, now: float) -> None:
        """A beat was written. One that comes late is a break: in the silence others may have thought us stopped."""
        self.breaks += now - self.last >= self.lease_seconds / 2
        self.last = now

    def __enter__(self) -> "Heartbeat":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.end("finished" if kind is None else kind.__name__)


def slurm_job(variables: Mapping[str, str]) -> str | None:
    """The SLURM job, or task of an array, that this process belongs to, as squeue names it."""
    if "SLURM_ARRAY_JOB_ID" in variables:
        return f"{variables['SLURM_ARRAY_JOB_ID']}_{variables.get('SLURM_ARRAY_TASK_ID', '0')}"
    return variables.get("SLURM_JOB_ID")


def request_cancel(folder: ResultsFolder, process: Process) -> None:
    """Ask a process to stop after its current unit; it looks with every heartbeat."""
    (folder.path / ROOM / f"{process.name}{CANCEL}").touch()
