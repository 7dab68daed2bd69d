"""SHA-256 of a folder's files, the large ones read once and remembered as long as they do not change."""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from kvbench.support.paths import home

LARGE = 2**24
"""Bytes from which on a file's hash is remembered: a gigabyte takes a second or more to read."""


def content_hash(folder: Path, patterns: Iterable[str]) -> str:
    """SHA-256 over names and contents of the files of a folder that match one of the patterns."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        digest.update(f"{path.name} {file_hash(path)}\n".encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes. That of a large file is looked up by path, size, times of change and inode.

    A folder that cannot be written costs the time of hashing again and nothing else.
    """
    path = path.resolve()
    if path.stat().st_size < LARGE:
        return _hash(path)
    state = _state(path)
    known = home() / "hashes" / hashlib.sha256(state.encode()).hexdigest()
    try:
        remembered = known.read_text()
    except OSError:
        remembered = ""
    if len(remembered) == 64:
        return remembered
    digest = _hash(path)
    if _state(path) == state:  # not written to meanwhile
        _remember(known, digest)
    return digest


def _state(path: Path) -> str:
    """What changes when a file does; a copy that keeps the time of its last write still gets another inode."""
    stat = path.stat()
    return f"{path} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remember(known: Path, digest: str) -> None:
    """Write whole or not at all: another process may look at the same moment."""
    try:
        known.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=known.parent, delete=False) as file:
            file.write(digest)
        os.replace(file.name, known)
    except OSError:
        return
