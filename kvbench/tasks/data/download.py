"""Downloads over HTTP, by the client of huggingface_hub: it retries, waits when a host asks for it, and resumes.

A file is fetched into a partial file, which the next process resumes where a commit or a SHA-256 fixes the content. The
hub's own `hf_hub_download` would begin anew (docs/reference/data.md). The caller verifies the bytes. HF_ENDPOINT,
HF_HOME, HF_TOKEN and HF_HUB_OFFLINE have their usual meaning; offline applies to every host.
"""

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kvbench.support import __version__
from kvbench.support.errors import MissingFile
from kvbench.tasks.data.lock import Download

MOST_UNPINNED_BYTES = 2**36
"""Bytes of a file whose size nobody has fixed."""
AGAIN = "what was downloaded is kept; run the same command to continue"
REFUSALS = {
    401: "it requires a token: set HF_TOKEN, or log in with `hf auth login`",
    403: "access is refused: its terms may have to be accepted on its page, with HF_TOKEN set",
    404: "there is no such file: it was moved or removed, and the lock file of kvbench is out of date",
    410: "it was removed",
}


class Unobtained(MissingFile):
    """A file could not be fetched, or is not what the lock says. Its final place is left as it was."""


class Unreachable(Unobtained):
    """A host did not answer; it will not answer for its other files either."""


class Full(Unobtained):
    """The disk is full; the next file would not fit either."""


class Watcher(Protocol):
    """Receives the progress of downloads: a bar on a terminal, lines elsewhere."""

    def say(self, text: str) -> None: ...
    def begin(self, name: str, total: int | None, had: int) -> None: ...  # or resumes after `had` of `total` bytes
    def advance(self, count: int) -> None: ...  # `count` more bytes


def fetch(download: Download, part: Path, watcher: Watcher) -> Download:
    """Fetch until the partial file is complete; returns the download with what the hub says of it, see `_described`.

    Raises:
        Unobtained: the host refuses, fails again and again, or has another size than the locked one.
        Unreachable: it does not answer, after some attempts.
        Full: the disk is full.
    """
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url, had = address(download), 0
    headers = {"Accept-Encoding": "identity", "User-Agent": f"kvbench/{__version__}"}
    of_client_or_disk: Any = HfHubHTTPError.__bases__  # the base of the client's errors, which is httpx or httpx2
    try:
        with _guarded(url, watcher):
            described = _described(download)
            if not (described.sha256 or described.revision) or size_of(part) > (described.bytes or 0):
                part.unlink(missing_ok=True)
            had = size_of(part)
            if described.repo:
                url, headers = address(described), build_hf_headers(library_name="kvbench") | headers
            with part.open("ab") as file:
                bar: Any = partial(_Bar, described, watcher)
                http_get(url, file, resume_size=had, headers=headers, expected_size=described.bytes, tqdm_class=bar)
        return described
    except Unobtained:
        raise
    except OfflineModeIsEnabled:
        raise Unobtained(
            f"{url} is not in the cache of the hub, and HF_HUB_OFFLINE is set: unset it, or copy the files into "
            "data.root (docs/reference/data.md says how)"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = REFUSALS.get(status, f"{error.response.reason_phrase}; {AGAIN}")
        raise Unobtained(f"{url}: the host answers {status}: {reason}") from None
    except of_client_or_disk as error:
        if isinstance(error, OSError) and error.errno:
            raise unwritable(part, error) from None
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"
        raise (Unobtained if size_of(part) > had else Unreachable)(f"{url}: {reason}; {AGAIN}") from None


def _described(download: Download) -> Download:
    """Return a file of the hub with the commit, size and SHA-256 that the hub names today, where the lock has none."""
    if not download.repo or (download.sha256 and download.bytes):
        return download
    from huggingface_hub import get_hf_file_metadata

    metadata = get_hf_file_metadata(address(download), library_name="kvbench")
    sha256 = metadata.etag if re.fullmatch(r"[0-9a-f]{64}", metadata.etag or "") else None
    commit, size = metadata.commit_hash or download.revision, download.bytes or metadata.size
    return replace(download, revision=commit, sha256=download.sha256 or sha256, bytes=size)


class _Bar:
    """Stands in for a bar of tqdm: tells the watcher, and refuses a file of another size."""

    def __init__(self, download: Download, watcher: Watcher, total: int | None = None, initial: int = 0, **_: Any):
        self.download, self.watcher, self.size = download, watcher, initial
        if total and download.bytes and total != download.bytes:
            raise Unobtained(f"{address(download)} has {total} bytes, not {download.bytes}: it was replaced")
        watcher.begin(download.name, total, initial)

    def update(self, count: int) -> None:
        self.size += count
        self.watcher.advance(count)
        if self.size > (most := self.download.bytes or MOST_UNPINNED_BYTES):
            raise Unobtained(f"{address(self.download)} has more than {most} bytes: it is no file of this data set")

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it to the watcher, whose next file takes its place."""


@contextmanager
def _guarded(url: str, watcher: Watcher) -> Iterator[None]:
    """While the block runs, tell the watcher what the client would print, and let no redirect end encryption."""
    from huggingface_hub import get_session

    notes = set[str]()

    def tell(record: logging.LogRecord) -> bool:
        if (text := " ".join(record.getMessage().split())) not in notes:
            watcher.say(text)
        notes.add(text)
        return False

    def refuse(request: Any) -> None:
        if url.startswith("https:") and request.url.scheme != "https":
            raise Unobtained(f"{url} leads to {request.url}: a redirect to an unencrypted connection is refused")

    handlers, hooks = logging.getLogger("huggingface_hub").handlers, get_session().event_hooks["request"]
    hooks.append(refuse)
    for handler in handlers:
        handler.addFilter(tell)
    try:
        yield
    finally:
        hooks.remove(refuse)
        for handler in handlers:
            handler.removeFilter(tell)


def address(download: Download) -> str:
    """Return the URL of a file, on the hub or elsewhere; of a wheel, the page of its release."""
    if download.package:
        return f"https://pypi.org/project/{download.package}/{download.revision}/"
    if not download.repo:
        return download.url
    from huggingface_hub import hf_hub_url

    return hf_hub_url(download.repo, download.name, repo_type="dataset", revision=download.revision)


def hub_cached(download: Download) -> Path | None:
    """Return the file at the locked revision in the cache of HF_HOME, if it is there."""
    if not download.repo or download.revision is None:
        return None
    from huggingface_hub import constants, try_to_load_from_cache

    path = try_to_load_from_cache(
        download.repo, download.name, constants.HF_HUB_CACHE, revision=download.revision, repo_type="dataset"
    )
    return Path(path) if isinstance(path, str) else None


def unwritable(path: Path, error: OSError) -> Unobtained:
    """Return the error for a file that cannot be written: a full disk, or a folder without permission."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Unobtained(f"cannot write {path}: {error.strerror}")
    return Full(f"{path}: {error.strerror}: free some space, or name another folder with data.root=FOLDER; {AGAIN}")


def size_of(part: Path) -> int:
    """Return the bytes that were fetched so far."""
    return part.stat().st_size if part.is_file() else 0
