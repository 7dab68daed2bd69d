"""Files of JSON lines whose writer may have been killed: everything but a torn last line must be whole."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from kvbench.support.errors import UserError

Item = TypeVar("Item")


def read_lines(path: Path, parse: Callable[[bytes], Item], what: str, warn: Callable[[str], None]) -> Iterator[Item]:
    """What `parse` makes of every line; it raises ValueError for a line that is not `what`.

    A last line that is torn (`torn`) is dropped and told to ``warn``: its process was killed.
    Raises ValueError naming file and line for any other line that is not `what`.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            item = parse(line)
        except (ValueError, RecursionError) as error:  # also json.JSONDecodeError and UnicodeDecodeError
            if number == len(lines) and not rest and torn(error):
                warn(dropped(path, number, error))
                return
            raise broken(path, number, what, error) from error
        yield item
    if rest:
        warn(dropped(path, len(lines) + 1))


def torn(error: ValueError | RecursionError) -> bool:
    """Whether a last line can be the beginning of another: it is no JSON. Whole JSON that is wrong was written so."""
    return isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))


def dropped(path: Path, number: int, error: object = "no newline") -> str:
    """The warning about a torn last line."""
    return f"{path}:{number}: torn last line dropped ({error}); the run that wrote it was cut off"


def broken(path: Path, number: int, what: str, error: object) -> UserError:
    """The error about another line that is not `what`."""
    return UserError(f"{path}:{number}: not {what}: {error}; mend or remove the line, or move the file away")
