"""Files that are read whole, up to a size: a file of others may be sparse, and claim any."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

from kvbench.support.errors import UserError

LARGEST = 2**28
"""Bytes of a line, and of a file that is one object."""


def read_whole(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a file. Raises UserError for more than `most`."""
    check_size(path, most)
    return path.read_bytes()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_size(path: Path, most: int = LARGEST) -> None:
    """Raise UserError for a file of more than `most` bytes."""
    if path.stat().st_size > most:
        raise UserError(f"{path} has more than {most} bytes: remove it, or put the file back")


def check_unpacked(archive: ZipFile, most: int = LARGEST) -> None:
    """Raise UserError for an archive whose members have more than `most` bytes."""
    size = sum(member.file_size for member in archive.infolist())
    if size > most:
        raise UserError(f"unpacked it has {size} bytes, more than {most}")


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their ends. Raises UserError for one of more than `LARGEST` bytes."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LARGEST + 1):
            number += 1
            if len(line) > LARGEST:
                raise UserError(f"{path}:{number}: a line of more than {LARGEST} bytes: remove it, or the file")
            yield line
