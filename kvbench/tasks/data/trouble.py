"""How fetching fails: data that could not be had is missing data, exit code 3, in one line that says what to do."""

import errno
from pathlib import Path

from kvbench.support.errors import MissingFile

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Unobtained(MissingFile):
    """A file could not be fetched, or is not what the lock says. Nothing lies at its final place because of it."""


class Unreachable(Unobtained):
    """A host did not answer: neither will it for its other files."""


class Full(Unobtained):
    """The disk is full: what comes next would not fit either."""


def full(folder: Path, error: OSError) -> Full:
    """The error for a disk without room; what was fetched so far is kept."""
    return Full(
        f"{folder}: {error.strerror or error}: make room, or name another folder with data.root=FOLDER; "
        "what was fetched is kept, the same command goes on"
    )


def unwritable(path: Path, error: OSError) -> Unobtained:
    """The error for a file that cannot be written: a full disk, or a folder that is not ours."""
    return full(path.parent, error) if error.errno in FULL else Unobtained(f"cannot write {path}: {error.strerror}")
