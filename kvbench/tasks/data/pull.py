"""One download from its host to its final places: lock, fetch, judge, make, rename.

A name under `data.root` stands for a whole file that was judged: everything before that lies in `.pull/` beside it.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvbench.tasks.data import hub
from kvbench.tasks.data.ask import Said
from kvbench.tasks.data.check import State, sha256_of, state_of
from kvbench.tasks.data.fetch import Wanted, Watcher, fetch, forget
from kvbench.tasks.data.lock import Download, Output
from kvbench.tasks.data.make import make
from kvbench.tasks.data.own import WORK, Recorded, held, is_held, read_own, record
from kvbench.tasks.data.trouble import Full, Unobtained, unwritable


@dataclass(frozen=True)
class Pulled:
    """What came of one download: its files' states before, and what is recorded of those that were written now."""

    before: Mapping[str, State]
    written: Mapping[str, Recorded]


def pull(download: Download, root: Path, watcher: Watcher, replace: bool = False) -> Pulled:
    """Make every output of a download lie under `root`; what lies there already is checked and stays.

    `replace`: files that are not what they should be are fetched again. Two processes may do this at once.

    Raises:
        Unobtained: it cannot be had, is not what the lock says, or a file in the way is not (without `replace`).
        Full: the disk is.
    """
    key = f"{download.source}-{download.name}".replace("/", "_")
    try:
        if all((root / output.path).is_file() for output in download.outputs):  # a folder we may only read will do
            before = _before(download, root, replace)
            if not _lacking(before):
                return Pulled(before, {})
        if is_held(root, key):
            watcher.say(f"{download.name}: another process is fetching it; waiting")
        with held(root, key):
            before = _before(download, root, replace)
            lacking = _lacking(before)
            if not lacking:
                return Pulled(before, {})
            return Pulled(before, _pull(download, root, key, lacking, watcher))
    except OSError as error:
        if isinstance(error, Unobtained):
            raise
        raise unwritable(Path(error.filename or root), error) from None


def _lacking(before: Mapping[str, State]) -> set[str]:
    return {path for path, state in before.items() if state in ("missing", "differs")}


def _before(download: Download, root: Path, replace: bool) -> dict[str, State]:
    own = read_own(root)
    before: dict[str, State] = {output.path: state_of(output, root, own) for output in download.outputs}
    for path, state in before.items():
        if state == "differs" and not replace:
            raise Unobtained(f"{root / path} is not the file that was locked or pulled: --replace fetches it anew")
    return before


def _pull(download: Download, root: Path, key: str, lacking: set[str], watcher: Watcher) -> dict[str, Recorded]:
    work = root / WORK
    partial = work / f"{key}.part"
    said = _obtain(download, partial, watcher)
    digest = sha256_of(partial)
    wanted = download.sha256 or said.sha256
    if wanted and digest != wanted:
        forget(partial)
        who = "the lock" if download.sha256 else "the hub"
        raise Unobtained(
            f"{hub.address(download)} has SHA-256 {digest}, {who} says {wanted}: nothing was kept of it; it was "
            "damaged on its way or replaced at its source"
        )
    try:
        judged = [
            (made, output, _judged(download, output, made, said, digest))
            for output, made in make(download, partial, work)
            if output.path in lacking
        ]
        written = {output.path: recorded for _, output, recorded in judged}
        record(root, written)  # first: a record without its file says missing, a file without its record nothing
        for made, output, _ in judged:
            _place(made, root / output.path)
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


def _obtain(download: Download, partial: Path, watcher: Watcher) -> Said:
    """Bring the whole file to `partial`: out of the hub's cache, or from its host."""
    url = hub.address(download)
    if cached := hub.cached(download):
        watcher.say(f"{download.name}: taken from the cache of the hub, {cached}")
        shutil.copyfile(cached, partial)
        return Said()
    if hub.is_offline():
        raise Unobtained(
            f"{url} is not here and HF_HUB_OFFLINE is set: nothing is fetched; unset it, or copy the files into "
            "data.root (docs/data.md says how)"
        )
    _check_room(download, partial)
    headers = hub.headers(download)
    return fetch(Wanted(download.name, url, headers, download.bytes, download.is_pinned), partial, watcher)


def _check_room(download: Download, partial: Path) -> None:
    """Say before a long download that it will not fit: the file, what is made of it, and what is there already."""
    rough = download.bytes or download.about_bytes or 0
    have = partial.stat().st_size if partial.is_file() else 0
    made = sum(output.bytes or 0 for output in download.outputs) if download.kind == "zip" else 0
    free = shutil.disk_usage(partial.parent).free
    if rough - have + made > free:
        raise Full(
            f"{partial.parent.parent}: {download.name} needs {rough - have + made} bytes, {free} are free: make room, "
            "or name another folder with data.root=FOLDER"
        )


def _judged(download: Download, output: Output, made: Path, said: Said, fetched: str) -> Recorded:
    """What is recorded of a file that is what it should be. Raises Unobtained for another one."""
    digest = sha256_of(made)
    if output.sha256 and digest != output.sha256:
        raise Unobtained(f"{output.path} of {download.origin} has SHA-256 {digest}, the lock says {output.sha256}")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    revision, size = download.revision or said.commit, made.stat().st_size
    return Recorded(digest, size, hub.address(download), revision, download.is_pinned, fetched, when)


def _place(made: Path, final: Path) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    with made.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(made, final)
    _sync(final.parent)


def _sync(folder: Path) -> None:
    """Let the new name survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
