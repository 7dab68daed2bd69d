"""The output of a report: a stream, or a file that appears complete or not at all."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

from kvbench.support.errors import UserError


@contextmanager
def text_to(out: TextIO | Path) -> Iterator[TextIO]:
    """A stream for text. Raises ValueError if the file cannot be written."""
    if not isinstance(out, Path):
        yield out
        return
    with _temporary(out) as path, path.open("w", encoding="utf-8", newline="") as file:
        yield file


def file_to(out: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file, then move it into place. Raises ValueError if it cannot be written."""
    with _temporary(out) as path:
        write(path)


@contextmanager
def _temporary(out: Path) -> Iterator[Path]:
    try:
        descriptor, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.stem}-", suffix=out.suffix)
    except OSError as error:
        raise UserError(f"cannot write {os.fspath(out)!r}: {error.strerror}; name another file with --out") from error
    os.close(descriptor)
    path = Path(name)
    try:
        yield path
        os.umask(mask := os.umask(0))
        path.chmod(0o666 & ~mask)
        path.replace(out)
    finally:
        path.unlink(missing_ok=True)


def check_parquet(out: TextIO | Path) -> Path:
    """The file that Parquet goes to. Raises ValueError for a stream."""
    if not isinstance(out, Path):
        raise UserError("--format parquet is no text; name a file with --out FILE.parquet")
    return out


def check_format(format: str, formats: Sequence[str]) -> None:
    """Raises ValueError for an unknown format."""
    if format not in formats:
        near = get_close_matches(format, formats, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"there is no format {format!r}; {meant}choose --format {'|'.join(formats)}")
