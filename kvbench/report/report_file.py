"""The output of a report: a stream, or a file that appears complete or not at all, with the mode it had.

A link is followed; a device, a FIFO or an open descriptor is written through and never replaced.
"""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from kvbench.support.errors import UserError

FORMATS = ("text", "markdown", "latex", "html", "csv", "json")
"""The formats of reports: four for readers, two for programs."""
SUFFIXES = {
    **{f".{name}": name for name in ("csv", "html", "json", "jsonl", "parquet")},
    **{".md": "markdown", ".tex": "latex", ".txt": "text"},
}
"""The formats that names of files ask for, names of rows among them."""


@contextmanager
def text_to(out: TextIO | Path) -> Iterator[TextIO]:
    """Yield a stream for text. Raises ValueError if the file cannot be written."""
    if not isinstance(out, Path):
        yield out
        return
    with file_to(out) as path, path.open("w", encoding="utf-8", newline="") as file:
        yield file


@contextmanager
def file_to(out: Path) -> Iterator[Path]:
    """Yield a file to fill, which then replaces what `out` links to or, if that is no plain file, goes through it.

    Raises ValueError if the file cannot be written.
    """
    places = (os.path.realpath(out.parent), os.readlink(out) if out.is_symlink() else "")
    is_stream = any(place.startswith("/proc/") for place in places)  # /dev/fd/3, /dev/stdout
    is_special = out.exists() and not (out.is_file() or out.is_dir())
    target = Path(os.path.realpath(out))
    if target.is_dir():
        raise UserError(f"cannot write {os.fspath(out)!r}: it is a folder; name a file")
    folder = None if is_stream or is_special else target.parent
    path = (folder or Path(tempfile.gettempdir())) / f".kvbench-{uuid4().hex}{out.suffix}"
    try:
        _create(path, out)
        yield path
        if folder is None:
            sys.stdout.flush()
            with path.open("rb") as content, out.open("ab") as stream:
                shutil.copyfileobj(content, stream)
            return
        mask = os.umask(0)  # reading it sets it
        os.umask(mask)
        before = target.stat() if target.exists() else None
        if before is not None:
            with suppress(PermissionError):  # only root gives files away
                os.chown(path, before.st_uid, before.st_gid)
        path.chmod(0o666 & ~mask if before is None else stat.S_IMODE(before.st_mode))
        path.replace(target)
    except OSError as error:
        if error.errno is not None and error.filename in (None, os.fspath(path)):
            error.filename, error.filename2 = os.fspath(out), None
        raise
    finally:
        with suppress(OSError):  # the first error counts
            path.unlink(missing_ok=True)


def _create(path: Path, out: Path) -> None:
    """Create the file to fill. Raises UserError, which names `out`, where its folder refuses."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise UserError(f"cannot write {os.fspath(out)!r}: {error.strerror}; name another file") from error


def check_parquet(out: TextIO | Path) -> Path:
    """Return the file that Parquet goes to. Raises ValueError for a stream."""
    if not isinstance(out, Path):
        raise UserError("--format parquet needs a file: name it with --out FILE.parquet")
    return out


def format_of(out: Path | None, formats: Sequence[str]) -> str:
    """Return the format that the name of a file asks for; the first one without a suffix. Raises UserError for an
    unknown suffix.
    """
    if out is None or not out.suffix:
        return formats[0]
    if out.suffix not in SUFFIXES:
        known = ", ".join(suffix for suffix, form in SUFFIXES.items() if form in formats)
        raise UserError(f"--out {out}: unknown suffix {out.suffix}; allowed: {known}, or any name with --format")
    return SUFFIXES[out.suffix]


def check_format(format: str, formats: Sequence[str]) -> None:
    """Raise ValueError for an unknown format."""
    if format not in formats:
        meant = "".join(f"did you mean {near}? " for near in get_close_matches(format, formats, n=1))
        raise UserError(f"unknown format {format!r}; {meant}allowed: {'|'.join(formats)}")
