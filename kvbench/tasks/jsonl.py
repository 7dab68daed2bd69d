"""Benchmarks as files of one JSON object a line. Knows nothing of what the objects say."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import find, folder, remembered


@dataclass(frozen=True)
class Line:
    """A row as it stands in its file: row `number`, from 0 and without blank lines, at `place` (NAME:LINE, from 1)."""

    number: int
    place: str
    content: bytes

    def read(self) -> dict[str, Any]:
        """What the row says. Raises ValueError for anything but a JSON object in UTF-8."""
        try:
            read = json.loads(self.content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"no UTF-8: {error.reason} at byte {error.start}") from None
        except RecursionError:
            raise UserError("nested too deeply") from None
        except ValueError as error:
            raise UserError(f"no JSON: {error}") from None
        if not isinstance(read, dict):
            raise UserError(f"no JSON object but {type(read).__name__}")
        return read


def rows(root: str | None, name: str, indices: Collection[int]) -> Iterator[Line]:
    """Those rows of a file under `data.root`, in ascending order; blank lines are none. None of them is parsed yet.

    Raises:
        ValueError: there is no such row.
        FileNotFoundError: the file is not there.
    """
    path, last, number = find(root, name), max(indices, default=-1), -1
    with path.open("rb") as file:
        for place, line in enumerate(file, start=1):
            if number == last:
                break
            if line.strip():
                number += 1
                if number in indices:
                    yield Line(number, f"{name}:{place}", line)
    if number < last or min(indices, default=0) < 0:
        raise UserError(f"{path} has no row {last if number < last else min(indices)}: it has {number + 1} or more")


def at_most(root: str | None, name: str, samples: int) -> int:
    """How many of so many samples a file has rows for; all of them as long as it is not there."""
    return min(samples, max(1, count(root, name))) if (folder(root) / name).is_file() else samples


@remembered
def count(root: str | None, name: str) -> int:
    """Rows of a file. Raises FileNotFoundError where it is not there."""
    with find(root, name).open("rb") as file:
        return sum(bool(line.strip()) for line in file)


def text(row: Mapping[str, Any], name: str) -> str:
    """A field that is a text. Raises ValueError for another one and for a text that UTF-8 cannot hold."""
    value = field(row, name)
    if not isinstance(value, str):
        raise UserError(f"its {name} is a {type(value).__name__}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"its {name} holds half a character: {error.reason} at {error.start}") from None
    return value


def field(row: Mapping[str, Any], name: str) -> Any:
    """A field. Raises ValueError without it."""
    if name not in row:
        raise UserError(f"it has no {name}, only {', '.join(map(str, row)) or 'nothing'}")
    return row[name]
