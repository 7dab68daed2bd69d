"""One file over HTTP into a partial file that the next attempt, or the next process, goes on with.

Knows nothing of what the file is for, and leaves judging its bytes to the caller. What is known to be out of date is
not gone on with: a host that names a strong ETag is asked for the rest of that version only (RFC 9110, If-Range), and
without an ETag only a file whose SHA-256 is locked is resumed.
"""

import os
import time
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Protocol

from kvbench.tasks.data.ask import Again, Said, ask
from kvbench.tasks.data.trouble import Unobtained, Unreachable, unwritable

ATTEMPTS = 5
"""How often in a row a host may give nothing."""
LONGEST_WAIT_SECONDS = 120.0
CHUNK_BYTES = 1 << 20


class Watcher(Protocol):
    """Who is told how it goes: a bar on a terminal, lines elsewhere."""

    def say(self, text: str) -> None:
        """Something a person should know."""

    def begin(self, name: str, total: int | None, had: int) -> None:
        """A file of `total` bytes begins, or goes on after `had`."""

    def advance(self, count: int) -> None:
        """So many bytes more."""

    def end(self) -> None:
        """No more bytes of this file for now."""


@dataclass(frozen=True)
class Wanted:
    """What to fetch. `size`: its bytes where they are locked; `is_pinned`: whether its SHA-256 is."""

    name: str
    url: str
    headers: dict[str, str]
    size: int | None
    is_pinned: bool


def fetch(wanted: Wanted, partial: Path, watcher: Watcher) -> Said:
    """Fetch until the partial file is whole; returns what the host said about it.

    Raises:
        Unobtained: the host refuses, breaks off again and again, or has another size than the locked one.
        Unreachable: it does not answer, after some attempts.
        Full: the disk is.
    """
    fruitless = 0
    while True:
        had = _size(partial)
        try:
            return _once(wanted, partial, watcher)
        except Again as again:
            fruitless = 0 if _size(partial) > had else fruitless + 1
            if fruitless == ATTEMPTS:
                failed = Unreachable if again.silent else Unobtained
                raise failed(
                    f"{wanted.url}: {again} ({ATTEMPTS} attempts); what was fetched is kept, the same command goes on"
                ) from None
            wait = min(2.0**fruitless if again.wait is None else again.wait, LONGEST_WAIT_SECONDS)
            watcher.say(f"{wanted.name}: {again}; again in {wait:.0f} s")
            time.sleep(wait)


def _once(wanted: Wanted, partial: Path, watcher: Watcher) -> Said:
    have, etag = _size(partial), _etag_of(partial)
    if have and have == wanted.size:
        return Said()
    if (wanted.size is not None and have > wanted.size) or not (etag or wanted.is_pinned):
        have = 0
    answer = ask(wanted.url, wanted.headers, have, etag)
    if answer is None:  # nothing is left to send
        return Said()
    with answer.body:
        if answer.total is not None and wanted.size is not None and answer.total != wanted.size:
            raise Unobtained(f"{wanted.url} has {answer.total} bytes, the lock says {wanted.size}: it was replaced")
        try:
            _etag_file(partial).write_text(answer.said.etag)
            file = partial.open("r+b" if answer.start else "wb")
        except OSError as error:
            raise unwritable(partial, error) from None
        watcher.begin(wanted.name, answer.total, answer.start)
        with file:
            file.seek(answer.start)
            file.truncate()
            got = answer.start + _copy(answer.body, file, answer.total, watcher)
        watcher.end()
    if answer.total is not None and got < answer.total:
        raise Again(f"the connection ended after {got} of {answer.total} bytes")
    return answer.said


def _copy(body: Any, file: IO[bytes], total: int | None, watcher: Watcher) -> int:
    """Copy what comes, keep what came; returns how many bytes. Raises Again where the connection breaks."""
    count = 0
    try:
        while True:
            try:
                chunk = body.read1(CHUNK_BYTES)
            except (OSError, HTTPException, ValueError) as error:
                raise Again(f"the connection broke: {type(error).__name__}: {error}") from None
            if not chunk:
                break
            file.write(chunk)
            count += len(chunk)
            watcher.advance(len(chunk))
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(Path(file.name), error) from None
    return count


def forget(partial: Path) -> None:
    """Remove a partial file and what is known of it."""
    partial.unlink(missing_ok=True)
    _etag_file(partial).unlink(missing_ok=True)


def _size(partial: Path) -> int:
    return partial.stat().st_size if partial.is_file() else 0


def _etag_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.etag")


def _etag_of(partial: Path) -> str:
    file = _etag_file(partial)
    return file.read_text() if file.is_file() else ""
