"""One download from its host to its final places: lock, fetch, verify, convert, rename.

A file at its name under `data.root` is always complete and verified; until then it is in `.pull/`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvbench.tasks.data.convert import convert
from kvbench.tasks.data.download import (
    Full,
    HostInfo,
    RemoteFile,
    Unobtained,
    Watcher,
    address,
    fetch,
    forget,
    hub_cached,
    hub_headers,
    is_offline,
    unwritable,
)
from kvbench.tasks.data.lock import Download, Output
from kvbench.tasks.data.verify import (
    WORK,
    PullRecord,
    State,
    add_records,
    exclusive,
    is_locked,
    read_records,
    rename_durably,
    sha256_of,
    state_of,
)


@dataclass(frozen=True)
class Pulled:
    """The result of one download: the states of its files before, and the records of those that were written now."""

    before: Mapping[str, State]
    written: Mapping[str, PullRecord]


def pull(download: Download, root: Path, watcher: Watcher, replace: bool = False) -> Pulled:
    """Write every output of a download under `root`; existing files are verified and stay.

    replace: fetch files again that are not what they should be. Two processes may do this at once.

    Raises:
        Unobtained: it cannot be fetched, is not what the lock says, or an existing file is not (without `replace`).
        Full: the disk is full.
    """
    key = f"{download.source}-{download.name}".replace("/", "_")
    try:
        if all((root / output.path).is_file() for output in download.outputs):  # a read-only folder will do
            before = _states(download, root, replace)
            if not _lacking(before):
                return Pulled(before, {})
        if is_locked(root, key):
            watcher.say(f"{download.name}: another process is fetching it; waiting")
        with exclusive(root, key):
            before = _states(download, root, replace)
            lacking = _lacking(before)
            return Pulled(before, _pull(download, root, key, lacking, watcher) if lacking else {})
    except OSError as error:
        if isinstance(error, Unobtained):
            raise
        raise unwritable(Path(error.filename or root), error) from None


def _lacking(states: Mapping[str, State]) -> set[str]:
    return {path for path, state in states.items() if state in ("missing", "differs")}


def _states(download: Download, root: Path, replace: bool) -> dict[str, State]:
    records = read_records(root)
    states: dict[str, State] = {output.path: state_of(output, root, records) for output in download.outputs}
    for path, state in states.items():
        if state == "differs" and not replace:
            raise Unobtained(f"{root / path} is not the file that was locked or pulled: --replace fetches it anew")
    return states


def _pull(download: Download, root: Path, key: str, lacking: set[str], watcher: Watcher) -> dict[str, PullRecord]:
    work = root / WORK
    partial = work / f"{key}.part"
    info = _obtain(download, partial, watcher)
    digest = sha256_of(partial)
    expected = download.sha256 or info.sha256
    if expected and digest != expected:
        forget(partial)
        source = "the lock" if download.sha256 else "the hub"
        raise Unobtained(
            f"{address(download)} has SHA-256 {digest}, {source} says {expected}: nothing was kept of it; it was "
            "damaged on its way or replaced at its source"
        )
    try:
        verified = [
            (made, output, _verified(download, output, made, info, digest))
            for output, made in convert(download, partial, work)
            if output.path in lacking
        ]
        written = {output.path: record for _, output, record in verified}
        add_records(root, written)  # first: a record without its file means missing, a file without its record nothing
        for made, output, _ in verified:
            (root / output.path).parent.mkdir(parents=True, exist_ok=True)
            rename_durably(made, root / output.path)
    except Full:
        raise
    except Unobtained:
        forget(partial)
        raise
    finally:
        for made in work.glob(f"{partial.stem}*.made"):
            made.unlink(missing_ok=True)
    forget(partial)
    return written


def _obtain(download: Download, partial: Path, watcher: Watcher) -> HostInfo:
    """Write the complete file to `partial`, from the hub's cache or from its host."""
    url = address(download)
    if cached := hub_cached(download):
        watcher.say(f"{download.name}: taken from the cache of the hub, {cached}")
        shutil.copyfile(cached, partial)
        return HostInfo()
    if is_offline():
        raise Unobtained(
            f"{url} is not cached and HF_HUB_OFFLINE is set: nothing is fetched; unset it, or copy the files into "
            "data.root (docs/data.md says how)"
        )
    _check_space(download, partial)
    headers = hub_headers(download)
    return fetch(RemoteFile(download.name, url, headers, download.bytes, download.is_pinned), partial, watcher)


def _check_space(download: Download, partial: Path) -> None:
    """Refuse a download that will not fit: the file and its archive's members, without what is already fetched."""
    size = download.bytes or download.about_bytes or 0
    fetched = partial.stat().st_size if partial.is_file() else 0
    made = sum(output.bytes or 0 for output in download.outputs) if download.kind == "zip" else 0
    free = shutil.disk_usage(partial.parent).free
    if size - fetched + made > free:
        raise Full(
            f"{partial.parent.parent}: {download.name} needs {size - fetched + made} bytes, {free} are free: make "
            "room, or name another folder with data.root=FOLDER"
        )


def _verified(download: Download, output: Output, made: Path, info: HostInfo, fetched: str) -> PullRecord:
    """The record of a file that is what it should be. Raises Unobtained for another file."""
    digest = sha256_of(made)
    if output.sha256 and digest != output.sha256:
        raise Unobtained(f"{output.path} of {download.origin} has SHA-256 {digest}, the lock says {output.sha256}")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    revision, size = download.revision or info.commit, made.stat().st_size
    return PullRecord(digest, size, address(download), revision, download.is_pinned, fetched, when)
