"""One download from its host to its final places: lock, fetch, verify, convert, rename.

A file at its name under `data.root` is always complete and verified; until then it is in `.pull/`.
"""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from kvbench.tasks.data.convert import convert
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
from kvbench.tasks.data.verify import (
    WORK,
    PullRecord,
    add_records,
    check_content,
    exclusive,
    read_records,
    rename_durably,
    state_of,
)
from kvbench.tasks.files import sha256_of


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
        if is_complete and not _lacking(download, root, replace):  # a read-only folder will do
            return {}
        busy = f"{download.name}: another process is fetching it; waiting"
        with exclusive(root, key, waiting=lambda: watcher.say(busy)):
            lacking = _lacking(download, root, replace)
            return _pull(download, root, key, lacking, watcher) if lacking else {}
    except Unobtained:
        raise
    except OSError as error:
        raise unwritable(Path(error.filename or root), error) from None


def _lacking(download: Download, root: Path, replace: bool) -> set[str]:
    records = read_records(root)
    states = {output.path: state_of(output, root, records) for output in download.outputs}
    for path, state in states.items():
        if state == "differs" and not replace:
            raise Unobtained(
                f"{root / path} differs from the lock file or from its download: --replace downloads it again"
            )
    return {path for path, state in states.items() if state in ("missing", "differs")}


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
            f"{address(download)} has SHA-256 {digest}, {source} says {expected}: discarded. It was damaged in "
            "transit or replaced by its publisher"
        )
    try:
        verified = [
            (made, output, _verified(download, output, made, info, digest, is_known=expected is not None))
            for output, made in convert(download, partial, work)
            if output.path in lacking
        ]
        written = {output.path: record for _, output, record in verified}
        add_records(root, written)  # first: a record without its file means missing, a file without its record nothing
        for made, output, _ in verified:
            (root / output.path).parent.mkdir(parents=True, exist_ok=True)
            rename_durably(made, root / output.path)
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
    from huggingface_hub import constants

    if cached := hub_cached(download):
        watcher.say(f"{download.name}: taken from the cache of the hub, {cached}")
        shutil.copyfile(cached, partial)
        return HostInfo()
    if constants.HF_HUB_OFFLINE:
        raise Unobtained(
            f"{address(download)} is not in the cache of the hub, and HF_HUB_OFFLINE is set: unset it, or copy the "
            "files into data.root (docs/data.md says how)"
        )
    needed = (download.bytes or download.about_bytes or 0) - size_of(partial)
    if download.kind in ("zip", "tar"):
        needed += sum(output.bytes or 0 for output in download.outputs)
    free = shutil.disk_usage(partial.parent).free
    if needed > free:
        raise Full(
            f"{partial.parent.parent}: {download.name} needs {needed} bytes, {free} are free: free some space, or "
            "name another folder with data.root=FOLDER"
        )
    return fetch(download, partial, watcher)


def _verified(
    download: Download, output: Output, made: Path, info: HostInfo, fetched: str, is_known: bool
) -> PullRecord:
    """The record of a file that is what it should be. Raises Unobtained for another file.

    is_known: whether the SHA-256 of the download was compared with one that the lock or the hub names.
    """
    digest = sha256_of(made)
    if not (output.sha256 or is_known):
        try:
            check_content(made, output.path)
        except ValueError as error:
            raise Unobtained(f"{output.path} of {download.origin}: {error}; it was discarded") from None
    if output.sha256 and digest != output.sha256:
        raise Unobtained(f"{output.path} of {download.origin} has SHA-256 {digest}, the lock says {output.sha256}")
    when = datetime.now(UTC).isoformat(timespec="seconds")
    revision, size = download.revision or info.commit, made.stat().st_size
    return PullRecord(digest, size, address(download), revision, download.is_pinned, fetched, when)
