"""Downloads over HTTP: requests, retries, resumption of partial files, and addresses of the Hugging Face hub.

A file is fetched into a partial file that the next attempt, or the next process, resumes. A host that names a strong
ETag is asked only for the rest of that version (RFC 9110, If-Range); without an ETag only a file with a locked SHA-256
is resumed. The caller verifies the bytes.

Addresses and credentials of the hub come from huggingface_hub, so that HF_ENDPOINT, HF_HOME, HF_TOKEN and
HF_HUB_OFFLINE have their usual meaning. The bytes are fetched here because the hub's own client resumes no partial file
of another process, and knows only the hub (docs/reference/data.md).
"""

import errno
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from kvbench.support import __version__
from kvbench.support.deadline import within
from kvbench.support.errors import MissingFile
from kvbench.support.quantity import count_noun
from kvbench.tasks.data.lock import Download

SILENCE_SECONDS = 30.0
FIRST_SECONDS = 10.0
"""Time in which a host must answer once: a machine without a network says so soon."""
HEAD_SECONDS = 300.0
"""How long the headers of an answer may take, redirects included."""
LEAST_BYTES, LEAST_SECONDS = 2**16, 900.0
"""So many bytes come within so many seconds: a byte now and then would have no end."""
MOST_UNPINNED_BYTES = 2**36
"""Bytes of a file whose size and hash nobody has fixed."""
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
PAGES = ("text/html", "application/xhtml+xml")
SHA256 = re.compile(r'"?([0-9a-f]{64})"?')
ATTEMPTS = 5
"""Attempts in a row without a new byte."""
LONGEST_WAIT_SECONDS = 120.0
CHUNK_BYTES = 1 << 20


class Unobtained(MissingFile):
    """A file could not be fetched, or is not what the lock says. Its final place is left as it was."""


class Unreachable(Unobtained):
    """A host did not answer; it will not answer for its other files either."""


class Full(Unobtained):
    """The disk is full; the next file would not fit either."""


class TemporaryFailure(Exception):
    """An attempt failed. wait: seconds that the host asks for, None if it names none; silent: it did not answer."""

    def __init__(self, text: str, wait: float | None = None, silent: bool = False) -> None:
        super().__init__(text)
        self.wait, self.silent = wait, silent


class Watcher(Protocol):
    """Receives the progress of downloads: a bar on a terminal, lines elsewhere."""

    def say(self, text: str) -> None: ...
    def begin(self, name: str, total: int | None, had: int) -> None: ...  # or resumes after `had` of `total` bytes
    def advance(self, count: int) -> None: ...  # `count` more bytes


@dataclass(frozen=True)
class HostInfo:
    """A file as its host describes it: its strong ETag; on the hub also its SHA-256 and the commit of the revision."""

    etag: str = ""
    sha256: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Response:
    """The bytes from `start` on; `total` includes those before it, None if the host does not say."""

    body: Any
    start: int
    total: int | None
    info: HostInfo


def fetch(download: Download, partial: Path, watcher: Watcher) -> HostInfo:
    """Fetch until the partial file is complete; returns the host's description.

    Raises:
        Unobtained: the host refuses, fails again and again, or has another size than the locked one.
        Unreachable: it does not answer, after some attempts.
        Full: the disk is full.
    """
    url, headers, failed_attempts = address(download), {"User-Agent": f"kvbench/{__version__}"}, 0
    if download.repo:
        from huggingface_hub.utils import build_hf_headers

        headers |= build_hf_headers(library_name="kvbench")
    begun, has_answered, pace = time.monotonic(), False, _Pace(url)
    while True:
        size_before, patience = size_of(partial), SILENCE_SECONDS
        if not has_answered:
            patience = max(1.0, begun + FIRST_SECONDS - time.monotonic())
        try:
            return _attempt(download, url, headers, partial, watcher, pace, patience)
        except TemporaryFailure as failure:
            failed_attempts = 0 if size_of(partial) > size_before else failed_attempts + 1
            has_answered = has_answered or not failure.silent
            wait = min(2.0**failed_attempts if failure.wait is None else failure.wait, LONGEST_WAIT_SECONDS)
            gives_up = not has_answered and time.monotonic() + wait >= begun + FIRST_SECONDS
            if gives_up or failed_attempts == ATTEMPTS:
                error = Unreachable if failure.silent else Unobtained
                raise error(
                    f"{url}: {failure} ({count_noun(failed_attempts, 'attempt')}); what was downloaded is kept; run "
                    "the same command to continue"
                ) from None
            watcher.say(f"{download.name}: {failure}; again in {wait:.0f} s")
            time.sleep(wait)
        except Unobtained:
            raise
        except OSError as error:
            raise unwritable(partial, error) from None


def forget(partial: Path) -> None:
    """Remove a partial file and its ETag."""
    partial.unlink(missing_ok=True)
    _etag_file(partial).unlink(missing_ok=True)


def address(download: Download) -> str:
    """Return the URL of a file, on the hub or elsewhere; of a wheel, the page of its release."""
    if download.package:
        return f"https://pypi.org/project/{download.package}/{download.revision}/"
    if not download.repo:
        return download.url
    from huggingface_hub import hf_hub_url

    return hf_hub_url(download.repo, download.name, repo_type="dataset", revision=download.revision or "main")


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
    return Full(
        f"{path}: {error.strerror}: free some space, or name another folder with data.root=FOLDER; what was "
        "downloaded is kept; run the same command to continue"
    )


def size_of(partial: Path) -> int:
    """Return the bytes that were fetched so far."""
    return partial.stat().st_size if partial.is_file() else 0


def _attempt(
    download: Download,
    url: str,
    headers: Mapping[str, str],
    partial: Path,
    watcher: Watcher,
    pace: "_Pace",
    patience: float,
) -> HostInfo:
    """Return one request, and what it sends. patience: seconds that the host may be silent."""
    start, etag_file = size_of(partial), _etag_file(partial)
    etag = etag_file.read_text() if etag_file.is_file() else ""
    if start and start == download.bytes:
        return HostInfo()
    if (download.bytes is not None and start > download.bytes) or not (etag or download.is_pinned):
        start = 0
    response = _request(url, headers, start, etag, patience)
    if response is None:
        return HostInfo()
    with response.body:
        if not download.is_pinned:
            _check_is_file(url, response.body.headers)
        if response.total is not None and download.bytes is not None and response.total != download.bytes:
            raise Unobtained(
                f"{url} has {response.total} bytes, the lock says {download.bytes}: the publisher replaced it"
            )
        etag_file.write_text(response.info.etag)
        watcher.begin(download.name, response.total, response.start)
        with partial.open("r+b" if response.start else "wb") as output:
            output.seek(response.start)
            output.truncate()
            size = response.start + _copy(response.body, output, watcher, pace, _most(download) - response.start)
            if size > _most(download):
                raise Unobtained(f"{url} has more than {_most(download)} bytes: it is no file of this data set")
    if response.total is not None and size < response.total:
        raise TemporaryFailure(f"the connection ended after {size} of {response.total} bytes")
    if response.total is None and not (download.is_pinned or response.info.sha256):
        watcher.say(
            f"{download.name}: NOT CHECKED for completeness: neither its host gives a length nor the lock file or "
            f"the hub a SHA-256; {size} bytes came"
        )
    return response.info


def _request(url: str, headers: Mapping[str, str], start: int, etag: str, patience: float) -> Response | None:
    """Request a file from byte `start` on; None if there is nothing after it. The host may send all of it instead."""
    message = urllib.request.Request(url, headers={**headers, "Accept-Encoding": "identity"})
    if start:
        message.add_header("Range", f"bytes={start}-")
        if etag:
            message.add_header("If-Range", etag)
    if urlsplit(url).scheme not in ("http", "https"):
        raise Unobtained(f"{url} is no address of http or https: correct HF_ENDPOINT")
    redirects = _Redirects()
    try:
        opener = urllib.request.build_opener(redirects)
        body = within(HEAD_SECONDS, lambda: opener.open(message, timeout=patience))
    except Unobtained:
        raise
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and start and error.headers.get("Content-Range") == f"bytes */{start}":
                return None
            if error.code == 416 and start:
                return _request(url, headers, 0, "", patience)
            raise _refusal(url, error) from None
    except (OSError, HTTPException, ValueError) as error:  # ValueError: a redirect to what is no address
        raise TemporaryFailure(f"no answer: {getattr(error, 'reason', error)}", silent=True) from None
    response_headers = {name.lower(): value for name, value in {**redirects.headers, **body.headers}.items()}
    linked_sha256 = SHA256.fullmatch(response_headers.get("x-linked-etag", ""))
    strong_etag = "" if response_headers.get("etag", "").startswith("W/") else response_headers.get("etag", "")
    info = HostInfo(strong_etag, linked_sha256 and linked_sha256[1], response_headers.get("x-repo-commit") or None)
    if body.status != 206:
        length = re.fullmatch(r"\d{1,18}", body.headers.get("Content-Length", ""))
        return Response(body, 0, length and int(length[0]), info)
    content_range = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d{1,18})", body.headers.get("Content-Range") or "")
    if content_range is None or int(content_range[1]) != start or (etag and info.etag != etag):  # or of another version
        body.close()
        return _request(url, headers, 0, "", patience)
    return Response(body, start, int(content_range[2]), info)


def _check_is_file(url: str, headers: Message) -> None:
    """Raise Unobtained for what is not the file itself: a page, or a compressed form that was not requested."""
    coding = headers.get("Content-Encoding", "identity").strip().lower()
    if coding != "identity":
        raise Unobtained(f"{url}: the host sends it compressed ({coding}), which was not requested")
    if headers.get_content_type() in PAGES:
        raise Unobtained(f"{url}: the host sends a web page, perhaps of a login or an error, in place of the file")


def _most(download: Download) -> int:
    """Bytes that a file may have."""
    return MOST_UNPINNED_BYTES if download.bytes is None else download.bytes


class _Pace:
    """Raise Unobtained where fewer than `LEAST_BYTES` come in `LEAST_SECONDS`, through whatever connections."""

    def __init__(self, url: str) -> None:
        self._url, self._since, self._count = url, time.monotonic(), 0

    def advance(self, count: int) -> None:
        self._count += count
        if self._count >= LEAST_BYTES:
            self._since, self._count = time.monotonic(), 0
        elif time.monotonic() > self._since + LEAST_SECONDS:
            raise Unobtained(
                f"{self._url}: fewer than {LEAST_BYTES} bytes came in {LEAST_SECONDS:g} s; what was downloaded is "
                "kept; run the same command to continue"
            )


def _copy(body: Any, file: IO[bytes], watcher: Watcher, pace: _Pace, most: int) -> int:
    """Copy a response until it has more than `most` bytes, and keep what came; returns the bytes.

    Raises TemporaryFailure if the connection breaks.
    """
    count = 0
    while count <= most:
        try:
            chunk = body.read1(CHUNK_BYTES)
        except (OSError, HTTPException, ValueError) as error:
            raise TemporaryFailure(f"the connection broke: {type(error).__name__}: {error}") from None
        if not chunk:
            break
        file.write(chunk)
        count += len(chunk)
        watcher.advance(len(chunk))
        pace.advance(len(chunk))
    file.flush()
    os.fsync(file.fileno())
    return count


def _etag_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.etag")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, keeps the hub's headers of the redirect, and sends credentials to no other host."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """As the library does, but never from https to another scheme."""
        source, target = urlsplit(req.full_url), urlsplit(newurl)
        if source.scheme == "https" and target.scheme != "https":
            raise Unobtained(f"{req.full_url} leads to {newurl}: a redirect to an unencrypted connection is refused")
        self.headers.update({name: value for name, value in headers.items() if name.lower().startswith("x-")})
        message = super().redirect_request(req, fp, code, msg, headers, newurl)
        if message is not None and source.netloc != target.netloc:
            message.remove_header("Authorization")
        return message


def _refusal(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code in TEMPORARY:
        wait = _seconds(error.headers.get("Retry-After") or "")
        return TemporaryFailure(f"the host answers {error.code} {error.reason}", wait)
    reason = {
        401: "it requires a token: set HF_TOKEN, or log in with `hf auth login`",
        403: "access is refused: its terms may have to be accepted on its page, with HF_TOKEN set",
        404: "there is no such file: it was moved or removed, and the lock file of kvbench is out of date",
        410: "it was removed",
    }.get(error.code, str(error.reason))
    return Unobtained(f"{url}: the host answers {error.code}: {reason}")


def _seconds(retry_after: str) -> float | None:
    """Return seconds until the time of a Retry-After header, which is a number of seconds or a date."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None
