"""Whether a file under `data.root` is what it should be, and the record of what was pulled into that folder.

    pulled.json   {"files": {"infinitebench/passkey.jsonl": {"sha256": "...", "bytes": 277..., "origin": "https://...",
                   "revision": "90f03943...", "pinned": false, "fetched": "...", "when": "2026-01-31T12:00:00+00:00"}}}

The record travels with the folder: if the lock has no SHA-256 of a file, the record tells whether it has changed.


Whether a file whose SHA-256 nobody knows is what its name says, as far as its bytes can tell."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kvbench.support.errors import UserError
from kvbench.tasks.data.lock import Output
from kvbench.tasks.files import sha256_of
from kvbench.tasks.jsonl import Line

RECORD = "pulled.json"
WORK = ".pull"
"""The folder of partial downloads and lock files under `data.root`: on the same disk, so that a rename is atomic."""

State = Literal["ok", "recorded", "unpinned", "missing", "differs"]
"""ok: as the lock says; recorded: not pinned, as on the day it was pulled; unpinned: neither lock nor record has its
SHA-256; differs: not as the lock or the record says."""


@dataclass(frozen=True)
class PullRecord:
    """A file as it was when it was pulled. pinned: whether the lock had the SHA-256 of its download, `fetched`."""

    sha256: str
    bytes: int
    origin: str
    revision: str | None
    pinned: bool
    fetched: str
    when: str


def state_of(output: Output, root: Path, records: Mapping[str, PullRecord]) -> State:
    """The state of a file; reads all of it if there is a SHA-256 to compare with."""
    path = root / output.path
    if not path.is_file():
        return "missing"
    record = records.get(output.path)
    expected = output.sha256 or (record.sha256 if record else None)
    if expected is None:
        return "unpinned"
    if sha256_of(path) != expected:
        return "differs"
    if output.sha256:
        return "ok"
    if output.made_of is None or record is None:
        return "recorded"
    return "ok" if record.fetched == output.made_of else "differs"  # made from the download of an older lock


def read_records(root: Path) -> dict[str, PullRecord]:
    """The record by names of files, empty if there is none. Raises UserError for another file of its name."""
    path = root / RECORD
    try:
        content: Mapping[str, Any] = json.loads(path.read_text("utf-8"))["files"]
        return {name: PullRecord(**fields) for name, fields in content.items()}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path} is not a record of downloads by kvbench ({type(error).__name__}): restore it, or remove it: "
            "files without a pinned SHA-256 are then reported as unpinned"
        ) from None


def add_records(root: Path, files: Mapping[str, PullRecord]) -> None:
    """Add to the record; another process may do the same."""
    with exclusive(root, "record"):
        records = read_records(root) | dict(files)
        content = {"files": {name: asdict(record) for name, record in sorted(records.items())}}
        temporary = root / WORK / f"{RECORD}.{os.getpid()}"
        try:
            temporary.write_text(json.dumps(content, indent=1), "utf-8")
            rename_durably(temporary, root / RECORD)
        finally:
            temporary.unlink(missing_ok=True)


def rename_durably(file: Path, final: Path) -> None:
    """Rename a file to its final place, so that both its bytes and its name survive a power failure."""
    with file.open("rb") as content:
        os.fsync(content.fileno())
    os.replace(file, final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(root: Path, name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of this name in the folder; calls `waiting` if another process has it, and waits.

    The lock is the kernel's and ends with its process; the lock file stays.
    """
    path = root / WORK / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


PAGES = (b"<!doctype html", b"<html")
GZIP = b"\x1f\x8b"


def check_content(file: Path, name: str) -> None:
    """Raise UserError for a file that is empty, a web page, compressed, or not of the kind that its name ends in."""
    with file.open("rb") as content:
        head = content.read(512)
    if not head.strip():
        raise UserError("it is empty")
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(PAGES):
        raise UserError("it is a web page, perhaps of a login or an error")
    if head.startswith(GZIP):
        raise UserError("it is compressed by gzip")
    match Path(name).suffix:
        case ".jsonl":
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        _check_row(number, line)
        case ".json":
            try:
                json.loads(file.read_text("utf-8"))
            except RecursionError:
                raise UserError("it is nested too deeply") from None
        case ".txt" | ".py" | ".md":
            file.read_text("utf-8")
        case ".parquet":
            import pyarrow
            import pyarrow.parquet

            try:
                pyarrow.parquet.read_metadata(file)
            except (pyarrow.ArrowException, OSError) as error:
                raise UserError(str(error).splitlines()[0]) from None


def _check_row(number: int, line: bytes) -> None:
    try:
        Line(number - 1, "", line).read()
    except UserError as error:
        raise UserError(f"line {number}: {error}") from None
