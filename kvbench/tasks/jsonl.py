"""Benchmark files with one JSON object per line."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvbench.support.errors import UserError
from kvbench.tasks.files import find, remembered
from kvbench.tasks.task import require_samples

Value = TypeVar("Value")


@dataclass(frozen=True)
class Line:
    """An unparsed row: its `number` counts from 0 without blank lines, `place` is NAME:LINE with lines from 1."""

    number: int
    place: str
    content: bytes

    def read(self) -> dict[str, Any]:
        """The JSON object. Raises UserError for anything else."""
        try:
            row = json.loads(self.content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"not UTF-8: {error.reason} at byte {error.start}") from None
        except RecursionError:
            raise UserError("nested too deeply") from None
        except ValueError as error:
            raise UserError(f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"not a JSON object but {type(row).__name__}")
        return row


def rows(root: str | None, name: str, indices: Collection[int] | None = None) -> Iterator[Line]:
    """Those rows of a file under `data.root`, or all of them, in ascending order. Blank lines are not rows.

    Raises UserError if there is no such row, MissingFile if there is no file.
    """
    if indices is None:
        indices = range(count(root, name))
    path, last, number = find(root, name), max(indices, default=-1), -1
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            if number == last:
                break
            if line.strip():
                number += 1
                if number in indices:
                    yield Line(number, f"{name}:{line_number}", line)
    if number < last or min(indices, default=0) < 0:
        raise UserError(f"{path} has no row {last if number < last else min(indices)}: it has {number + 1} or more")


def values(root: str | None, name: str, read: Callable[[dict[str, Any]], Value]) -> Iterator[Value | None]:
    """`read` of each row of a file, None for rows that it refuses with a ValueError. Raises as `rows` does."""
    for line in rows(root, name):
        try:
            yield read(line.read())
        except ValueError:
            yield None


def samples(task: Any, numbers: Sequence[int], indices: Collection[int]) -> Iterator[tuple[int, Line]]:
    """Samples with their rows in the first file of a task, if sample i is row `numbers[i]`. Raises as `rows` does."""
    require_samples(task, indices, len(numbers))
    sample_of = {numbers[index]: index for index in indices}
    for line in rows(task.root, task.files[0], sample_of):
        yield sample_of[line.number], line


@remembered
def count(root: str | None, name: str) -> int:
    """Number of rows of a file. Raises MissingFile."""
    with find(root, name).open("rb") as file:
        return sum(bool(line.strip()) for line in file)


def field(row: Mapping[str, Any], name: str) -> Any:
    """A field of a row. Raises UserError if it is absent."""
    if name not in row:
        raise UserError(f"it has no {name}, only {', '.join(map(str, row)) or 'nothing'}")
    return row[name]


def text(row: Mapping[str, Any], name: str) -> str:
    """A field that is a text. Raises UserError for another type and for a text that UTF-8 cannot encode."""
    value = field(row, name)
    if not isinstance(value, str):
        raise UserError(f"its {name} is a {type(value).__name__}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"its {name} has an incomplete character (a lone surrogate): {error.reason} at {error.start}"
        ) from None
    return value


def nonempty_text(row: Mapping[str, Any], name: str) -> str:
    """`text` that is not only white space. Raises UserError."""
    value = text(row, name)
    if not value.strip():
        raise UserError(f"its {name} is empty")
    return value


def texts(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A field that is a list of at least one text. Raises UserError for any other value."""
    value = field(row, name)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        verb = "are" if name.endswith("s") else "is"
        raise UserError(f"its {name} {verb} {str(value)[:80]}: a list of at least one text")
    return tuple(value)
