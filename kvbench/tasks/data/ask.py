"""One HTTP request for a file or the rest of one: redirects, refusals, and when to come back."""

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from kvbench import __version__
from kvbench.tasks.data.trouble import Unobtained

AGENT = f"kvbench/{__version__}"
SECONDS_OF_SILENCE = 30.0
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
SHA256 = re.compile(r'"?([0-9a-f]{64})"?')


class Again(Exception):
    """It did not work this time. `wait`: seconds the host asks for, None where it says nothing; `silent`: it never
    answered."""

    def __init__(self, text: str, wait: float | None = None, silent: bool = False) -> None:
        super().__init__(text)
        self.wait, self.silent = wait, silent


@dataclass(frozen=True)
class Said:
    """What the host said of a file: its strong ETag, and of the hub its SHA-256 and the commit of the revision."""

    etag: str = ""
    sha256: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Answer:
    """The bytes from `start` on; `total` counts those before it too, None where the host does not say."""

    body: Any
    start: int
    total: int | None
    said: Said


def ask(url: str, headers: Mapping[str, str], start: int, etag: str) -> Answer | None:
    """Ask for a file from byte `start` on; None where there is nothing after it.

    The host may answer with the whole file instead: `Answer.start` says so.

    Raises:
        Again: for a while.
        Unobtained: for good.
    """
    request = urllib.request.Request(url, headers={"User-Agent": AGENT, **headers, "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        if etag:
            request.add_header("If-Range", etag)
    redirects = _Redirects()
    try:
        body = urllib.request.build_opener(redirects).open(request, timeout=SECONDS_OF_SILENCE)
    except Unobtained:
        raise
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and start and error.headers.get("Content-Range") == f"bytes */{start}":
                return None
            if error.code == 416 and start:
                return ask(url, headers, 0, "")
            raise _refused(url, error) from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Again(f"no answer: {reason}", silent=True) from None
    said, length = _said({**redirects.said, **body.headers}), body.headers.get("Content-Length")
    if body.status != 206:
        return Answer(body, 0, None if length is None else int(length), said)
    began = re.match(r"bytes (\d+)-\d+/(\d+)$", body.headers.get("Content-Range") or "")
    if began is None or int(began[1]) != start:
        body.close()
        return ask(url, headers, 0, "")
    return Answer(body, start, int(began[2]), said)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, keeps what the hub says before it sends us on, and gives no other host our credentials."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """As the library does, within what is safe."""
        here, there = urlsplit(req.full_url), urlsplit(newurl)
        if here.scheme == "https" and there.scheme != "https":
            raise Unobtained(f"{req.full_url} sends us on to {newurl}: not over a connection that anybody can change")
        self.said.update({name: value for name, value in headers.items() if name.lower().startswith("x-")})
        further = super().redirect_request(req, fp, code, msg, headers, newurl)
        if further is not None and here.netloc != there.netloc:
            further.remove_header("Authorization")
        return further


def _said(headers: Mapping[str, str]) -> Said:
    by_name = {name.lower(): value for name, value in headers.items()}
    etag = by_name.get("etag", "")
    linked = SHA256.fullmatch(by_name.get("x-linked-etag", ""))
    return Said(
        "" if etag.startswith("W/") else etag, linked[1] if linked else None, by_name.get("x-repo-commit") or None
    )


def _refused(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code in TEMPORARY:
        asked = error.headers.get("Retry-After")
        return Again(f"the host answers {error.code} {error.reason}", _seconds(asked))
    reason = {
        401: "it wants a token: set HF_TOKEN, or log in with `hf auth login`",
        403: "access is refused: its terms may have to be accepted on its page, with HF_TOKEN set",
        404: "there is no such file: it was moved or removed, and the lock of kvbench is out of date",
        410: "it was removed",
    }.get(error.code, str(error.reason))
    return Unobtained(f"{url}: the host answers {error.code}: {reason}")


def _seconds(asked: str | None) -> float | None:
    """What Retry-After asks for: a number of seconds, or a date."""
    if not asked:
        return None
    if asked.strip().isdecimal():
        return float(asked)
    try:
        return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None
