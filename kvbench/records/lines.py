"""Files of JSON lines, whose writer may have been killed: every line must be whole, except for a torn last one."""

import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvbench.support.errors import UserError
from kvbench.support.whole_file import LARGEST, read_whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Item = TypeVar("Item")
Warn = Callable[[str], None]
TORN = "torn last line"
MISSING = "are missing"
"""What a warning of missing rows says, for readers that know it (`--partial`)."""
BLOCK = 4 * 2**20
"""Bytes of a file that are read at a time."""
LONGEST = LARGEST
"""Bytes of a line, and of a file that is one object."""


@dataclass(frozen=True)
class LineBlock:
    """`count` whole lines of a file, without the last newline. first: the number of the first line, counted from 1.

    is_end: whether the file ends with them; if not, more lines follow, or a last one without a newline. are_objects:
    whether every line begins with a brace.
    """

    text: bytes
    first: int
    count: int
    is_end: bool
    are_objects: bool


def read_lines(path: Path, parse: Callable[[bytes], Item], kind: str, warn: Warn) -> Iterator[Item]:
    """Return what `parse` makes of every line of a file.

    A last line that is not JSON is dropped with a warning: its writer was killed. Raises UserError naming file and line
    for any other line of which `parse` raises a ValueError.
    """
    for block in read_blocks(path, warn):
        last = block.first + block.count - 1
        for number, line in enumerate(block.text.split(b"\n"), start=block.first):
            try:
                item = parse(line)
            except (ValueError, RecursionError) as error:
                if number == last and block.is_end and isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
                    warn(torn(path, number, error))
                    return
                raise UserError(
                    f"{path}:{number}: not {kind}: {error}; fix or remove the line, or move the file away"
                ) from error
            yield item


def listed(folder: Path, suffix: str = "") -> list[Path]:
    """List the files of a results folder whose name ends so, by name; nothing if there is no such folder.

    Raises OSError for a folder that cannot be listed, whatever the reason: it is not an empty one.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if entry.name.endswith(suffix))
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_blocks(path: Path, warn: Warn) -> Iterator[LineBlock]:
    """Yield a file in blocks of about `BLOCK` bytes; a last line without a newline is dropped with a warning."""
    check_file(path)
    size, first, unended = path.stat().st_size, 1, [b""]
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(min(BLOCK, size - file.tell())):  # what is appended meanwhile is not read
            if (end := chunk.rfind(b"\n")) < 0:
                unended.append(chunk)
                if sum(map(len, unended)) > LONGEST:
                    raise _too_long(path)
                continue
            text, unended = b"".join([*unended, memoryview(chunk)[:end]]), [chunk[end + 1 :]]
            starts = [0]
            while start := text.find(b"\n", starts[-1]) + 1:  # faster than counting newlines
                starts.append(start)
            count, are_objects = len(starts), all(text[start : start + 1] == b"{" for start in starts)
            yield LineBlock(text, first, count, file.tell() == size and not unended[0], are_objects)
            first += count
    if any(unended):
        warn(torn(path, first, "no newline"))


def _too_long(path: Path) -> UserError:
    return UserError(f"{path}: a line of more than {LONGEST} bytes: remove it, or the file")


def crc32_of(path: Path) -> str:
    """Return the CRC-32 of the bytes of a file of lines, in hex. Raises UserError as `read_blocks`."""
    check_file(path)
    checksum = length = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(2**18):  # stays in the processor's cache
            checksum = zlib.crc32(chunk, checksum)
            end = chunk.rfind(b"\n")
            length = len(chunk) + (length if end < 0 else -end - 1)
            if length > LONGEST:
                raise _too_long(path)
    return f"{checksum:08x}"


def check_file(path: Path) -> None:
    """Raise UserError for a name that leads to no file: a broken link, a folder, or a FIFO, which nobody may write."""
    check_name(path)
    if not path.is_file():
        kind = "a broken link" if path.is_symlink() and not path.exists() else "no file"
        raise UserError(f"{path} is {kind}: remove it, or put the file back")


def small_file(path: Path) -> bytes:
    """Return bytes of a file that holds one object. Raises UserError as `check_file`, and for more than `LONGEST`."""
    check_file(path)
    return read_whole(path, LONGEST)


def check_name(path: Path) -> None:
    """Raise UserError for a name that is not UTF-8, which no report could print and no table hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = str(path).encode(errors="backslashreplace").decode()
        raise UserError(f"{shown}: its name is not UTF-8: rename it") from None


def read_json(kind: type[Item], path: Path, name: str) -> Item:
    """Read a JSON file, which messages call `name`. Raises UserError, in one line, for a damaged file."""
    try:
        return of_json(kind, small_file(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not {name}: {error}; fix or remove it") from error


def of_json(kind: type[Item], text: str | bytes) -> Item:
    """Return a dataclass whose fields JSON holds. Raises UserError, in one line, where they are missing or of another
    type.
    """
    from pydantic import ValidationError  # late, since most commands read no such file

    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        json.loads(text)  # raises for a torn line
        first = error.errors()[0]
        raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@lru_cache
def _adapter(kind: type[Item]) -> "TypeAdapter[Item]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def torn(path: Path, number: int, reason: object) -> str:
    """Return the warning about a last line that is not whole."""
    return f"{path}:{number}: {TORN} dropped ({reason}); the run that wrote it was killed"
