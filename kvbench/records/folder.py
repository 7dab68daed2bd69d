"""A results folder: its files, and how they are written so that no file is ever seen incomplete.

rows/<utc>-<host>-<pid>-<n>.jsonl       rows, one file per writing process
kept/<same name>                        the KV pairs that cells kept, if `results.kept` asks for them
prompts/<same name>                     the ends of prompts, and their right answers
curves/<same name>                      a metric by position, for tasks that have one
timings/<same name>                     seconds and bytes, for tasks that measure them
cells/<cell>.json                       the full description of a cell
codes/<id>.json                         hashes of the code that made rows, by part
environments/<id>.json                  the software and machine that made rows
errors/<hash>.txt                       tracebacks of samples that failed
errors/<utc>-<host>-<pid>-<n>.txt       the traceback of a run that failed
finished/<utc>-<host>-<pid>-<n>.json    how many rows a rows file had as its process ended, and its CRC-32
processes/<utc>-<host>-<pid>-<n>.json   a process that works, or worked, on the folder
leases/<group>-<job>.<generation>       the process that makes a prefill job now
sweeps/<hash>.json                      the arguments and cells of a command
jobs/<number>.json                      SLURM jobs submitted for the folder; their output is in logs/
columns/<same name>.parquet             copies of rows as columns; may be removed at any time
manifest.json                           the files of the folder and the hash of them all
"""

import errno
import hashlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvbench.records.environment import content_hash, environment_id
from kvbench.records.lines import listed, read_json, small_file
from kvbench.support.errors import JSON_KINDS, UserError, naming

SIDECARS = ("kept", "prompts", "curves", "timings")
NUMBERS = "probes"  # of tables beside rows: numbers about samples of cells
_FOLDERS = (
    *("rows", *SIDECARS, "finished", "cells", "codes", "environments", "errors", "processes", "leases", "sweeps"),
    *("jobs", "logs", "columns", NUMBERS),
)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
FILE_NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
_NAMED_BY_CONTENT = ("cells", "codes", "environments", "sweeps")
_AGAIN = "the same command writes it again"


@dataclass(frozen=True)
class Requested:
    """Request of a command: its arguments, and the number of samples of each cell."""

    arguments: tuple[str, ...]
    cells: Mapping[str, int]

    def __post_init__(self) -> None:
        for cell, samples in self.cells.items():
            if not 0 <= samples < 2**63:
                raise UserError(f"{samples} samples of cell {cell}")


@dataclass(frozen=True)
class Finished:
    """Row count of a rows file, CRC-32 of its bytes in hex, empty if it was not noted, and both of the
    files of its name in other folders, by folder.
    """

    rows: int
    crc32: str
    sidecars: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, init=False)
class ResultsFolder(os.PathLike[str]):
    """The paths of one results folder. Constructing it touches no disk; folders appear with their first file."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        object.__setattr__(self, "path", Path(path))

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def rows(self) -> Path:
        return self.path / "rows"

    def write_cell(self, cell: str, description: Mapping[str, Any]) -> Path:
        """Write the full description of a cell under its hash, unless it exists."""
        return self._write_once("cells", cell, description)

    def read_cell(self, cell: str) -> dict[str, Any] | None:
        """Read the description of a cell; None if there is none."""
        return self._read("cells", cell)

    def write_environment(self, environment: Mapping[str, Any]) -> str:
        """Write an environment under the hash of its content; returns that id, the row's ``environment``."""
        name = environment_id(environment)
        self._write_once("environments", name, environment)
        return name

    def read_environment(self, name: str) -> dict[str, Any] | None:
        """Return the environment of an id, or None if there is none."""
        return self._read("environments", name)

    def write_code(self, parts: Mapping[str, str]) -> str:
        """Write the hashes of the parts of some code under the hash of them all; returns that, the row's ``code``."""
        name = environment_id(parts)
        self._write_once("codes", name, parts)
        return name

    def read_code(self, name: str) -> dict[str, str] | None:
        """Return the hashes of the parts of some code, or None if there are none: for `NO_SOURCE` too."""
        return self._read("codes", name) if FILE_NAME.fullmatch(name) else None

    def environments(self) -> list[dict[str, Any]]:
        """Return every environment that made rows here, sorted by id."""
        names = [path.stem for path in listed(self.path / "environments", ".json")]
        return [environment for name in names if (environment := self.read_environment(name)) is not None]

    def write_finished(self, name: str, finished: Finished) -> None:
        """Write the row count and checksum of the finished file of this name."""
        _write_once(self.path / "finished" / f"{name}.json", (json.dumps(asdict(finished)) + "\n").encode())

    def read_finished(self, name: str) -> Finished | None:
        """Read what `write_finished` wrote; None if the writer was killed."""
        path = self.path / "finished" / f"{name}.json"
        fix = "remove it; without it the lines of its rows file are checked one by one"
        if (data := _read_object(path, fix)) is None:
            return None
        rows, crc32, sidecars = data.get("rows"), data.get("crc32", ""), data.get("sidecars", {})
        if type(rows) is not int or not isinstance(crc32, str) or not isinstance(sidecars, dict):
            raise UserError(f"{path} has no number of rows and no CRC-32: {fix}")
        return Finished(rows, crc32, sidecars)

    def write_error(self, text: str) -> Path:
        """Write a traceback to a new file; returns its path."""
        descriptor, path = create_exclusive(self.path / "errors", ".txt")
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        return path

    def write_failure(self, text: str) -> Path:
        """Write the traceback of a sample at its `failure_path`: samples with the same failure share a file."""
        return _write_once(self.path / failure_path(text), text.encode("utf-8", "backslashreplace"))

    def write_sweep(self, arguments: Sequence[str], cells: Mapping[str, int]) -> None:
        """Write what a command requests, under its hash: its arguments, and the number of samples of each cell."""
        content = asdict(Requested(tuple(arguments), dict(cells)))
        self._write_once("sweeps", environment_id(content), content)

    def read_requests(self) -> dict[str, Requested]:
        """Read the requests of commands, by their hash. Raises UserError for a damaged file."""
        requests: dict[str, Requested] = {}
        for path in listed(self.path / "sweeps", ".json"):
            request = read_json(Requested, path, "the request of a command")
            if environment_id(asdict(request)) != path.stem:
                raise UserError(f"{path} was changed: its name is not the hash of its content: remove it; {_AGAIN}")
            requests[path.stem] = request
        return requests

    def withdraw(self, request: str) -> None:
        """Remove the request of this hash. Its command writes it again."""
        (self.path / "sweeps" / f"{request}.json").unlink(missing_ok=True)

    def withdraw_cells(self, arguments: Sequence[str], cells: Collection[str]) -> None:
        """Request these cells no longer for the commands with these arguments, but all others as before.

        Raises UserError for a damaged request.
        """
        for name, request in self.read_requests().items():
            if request.arguments == tuple(arguments) and request.cells.keys() & set(cells):
                self.withdraw(name)
                if left := {cell: samples for cell, samples in request.cells.items() if cell not in cells}:
                    self.write_sweep(arguments, left)

    def read_requested(self) -> dict[str, int]:
        """Return the samples requested of each cell, the most of all commands. Raises UserError for a damaged file."""
        requested: dict[str, int] = {}
        for request in self.read_requests().values():
            for cell, samples in request.cells.items():
                requested[cell] = max(samples, requested.get(cell, 0))
        return requested

    def _named(self, folder: str, name: str) -> Path:
        """Return the path of a JSON file. Raises ValueError for a name that kvbench never gives, like ../../x."""
        if not FILE_NAME.fullmatch(name):
            raise UserError(
                f"{self.path}: {name[:80]!r} names no file of {folder}: a name has letters, digits, _ and - only. "
                "The row was not written by kvbench: correct or remove it"
            )
        return self.path / folder / f"{name}.json"

    def _read(self, folder: str, name: str) -> dict[str, Any] | None:
        """Return the content of a JSON file, or None if it does not exist. Raises ValueError for a damaged file."""
        path = self._named(folder, name)
        fix = "remove it; the next run of that cell writes it again"
        data = _read_object(path, fix)
        if data is not None and folder in _NAMED_BY_CONTENT and not content_hash(data).startswith(name):
            raise UserError(f"{path} was changed: its name is not the hash of its content: {fix}")
        return data

    def _write_once(self, folder: str, name: str, content: Mapping[str, Any]) -> Path:
        text = json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"
        return _write_once(self._named(folder, name), text.encode())


def _read_object(path: Path, fix: str) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if it does not exist. Raises ValueError for a damaged file."""
    if not _exists(path):
        return None
    content = small_file(path)
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is incomplete ({error}): {fix}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} is {JSON_KINDS[type(data)]}, not an object: {fix}")
    return data


def failure_path(text: str) -> str:
    """Return where a folder has the traceback of a sample: under the hash of its text."""
    return f"errors/{hashlib.sha256(text.encode('utf-8', 'backslashreplace')).hexdigest()[:12]}.txt"


def _write_once(final: Path, data: bytes) -> Path:
    """Make a complete file with this content appear, unless it exists; a damaged one is replaced."""
    with suppress(OSError):
        if final.stat().st_size == len(data) and final.read_bytes() == data:
            return final
    with replacing(final) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return final  # the name stands for the content: a race between two writers is harmless


@contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yield a new file to write, which becomes `final` as the block ends; if it fails, nothing stays."""
    descriptor, temporary = create_exclusive(final.parent, ".tmp")
    try:
        with naming(final):
            os.close(descriptor)
            yield temporary
            os.replace(temporary, final)
    except BaseException:
        with suppress(OSError):  # the first error counts
            temporary.unlink(missing_ok=True)
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """See that rows can be written under `path`, leaving nothing behind.

    The permission bits say nothing about root or read-only mounts, so a nameless file is really opened in the nearest
    folder that exists.

    Raises UserError naming the folder, what is in the way, and the setting to change: also for a link in it that
    leads out of it.
    """
    check_is_path(path)
    _check_links(Path(path))
    checked = set[Path]()
    for folder in (Path(path), *(Path(path) / name for name in _FOLDERS)):
        blocker = folder
        try:
            while not _exists(blocker):
                blocker = blocker.parent
            if blocker in checked:
                continue
            checked.add(blocker)
            if not blocker.is_dir():
                raise NotADirectoryError("is not a folder")
            with tempfile.TemporaryFile(dir=blocker):
                pass
        except (OSError, ValueError) as error:
            reason = "is not a folder" if isinstance(error, NotADirectoryError) else getattr(error, "strerror", error)
            raise UserError(
                f"results folder {os.fspath(path)!r} cannot be written: {os.fspath(blocker)!r}: {reason}; "
                "name a folder you may write to with results.dir=FOLDER"
            ) from error


def check_is_path(path: str | os.PathLike[str]) -> None:
    """Raise UserError for an address such as s3://bucket/runs, which would become a folder called ``s3:``."""
    if _ADDRESS.match(os.fspath(path)):
        raise UserError(
            f"results folder {os.fspath(path)!r} is an address: rows are appended to files of a folder; write to a "
            "folder of this machine and copy it there afterwards, or name a folder where the storage is mounted"
        )


def _check_links(path: Path) -> None:
    """Refuse links in a results folder through which files would be written anywhere."""
    is_readable = os.path.isdir(path) and os.access(path, os.R_OK)  # another is reported by the attempt to write
    for name in os.listdir(path) if is_readable else ():
        _check_link(path / name)


def _check_link(link: Path) -> None:
    """Raise UserError for a link that leads out of the results folder that it is in."""
    path = link.parent
    try:
        leads_out = link.is_symlink() and not link.resolve().is_relative_to(path.resolve())
    except (OSError, ValueError):  # an impossible name: reported by the attempt to write
        return
    if leads_out:
        raise UserError(
            f"results folder {os.fspath(path)!r} cannot be written: {os.fspath(link)!r} is a link to "
            f"{os.fspath(link.resolve())!r}, outside of it; remove the link, or name another folder with "
            "results.dir=FOLDER"
        )


def _exists(path: Path) -> bool:
    """Return whether something has that name, a dangling link included. OSError or ValueError for an impossible
    name.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def create_exclusive(folder: Path, suffix: str) -> tuple[int, Path]:
    """Create a file that no other process has; returns its append-only descriptor and path. Names sort by time."""
    host = re.sub(r"[^0-9A-Za-z_.]+", "_", socket.gethostname()) or "host"
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    number = 0
    while True:
        path = folder / f"{stamp}-{host}-{os.getpid()}-{number}{suffix}"
        try:
            return create(path), path
        except FileExistsError:
            number += 1
        except OSError:  # of a network disk, which may have created it
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise


def create(path: Path) -> int:
    """Create a file, and its folder; returns its append-only descriptor. All files of a results folder begin here.

    Raises FileExistsError where something has the name, be it a link, and UserError where its folder is a link that
    leads out of the results folder.
    """
    _make_folder_of(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it at once. Raises OSError where only a part goes down, as on a disk that is full."""
    if os.write(descriptor, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def link(file: Path, path: Path) -> None:
    """Give a file of a results folder a second name: it appears with all of its content. Raises as `create`, and
    OSError where the file system has no hard links.
    """
    _make_folder_of(path)
    os.link(file, path)


def _make_folder_of(path: Path) -> None:
    if path.parent.name in _FOLDERS:
        _check_link(path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # says of a file that it is none
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path.parent)) from None
