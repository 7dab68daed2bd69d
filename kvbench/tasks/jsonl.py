"""Benchmark files with one JSON object per line, and tasks whose samples are such rows."""

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvbench.support.errors import JSON_KINDS, UserError
from kvbench.support.grouped import grouped
from kvbench.tasks.files import FromFiles, TaskError, find, limit_samples, remembered
from kvbench.tasks.task import InvalidSample, Sample, Task, TokenCounter, require_positive, require_samples

Row = Mapping[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Line:
    """An unparsed row: its `number` counts from 0 without blank lines, `place` is NAME:LINE with lines from 1."""

    number: int
    place: str
    content: bytes

    def read(self) -> Row:
        """Return the JSON object. Raises UserError for anything else."""
        try:
            row = json.loads(self.content.decode("utf-8-sig"), object_pairs_hook=unrepeated)
        except UnicodeDecodeError as error:
            raise UserError(f"not UTF-8: {error.reason} at byte {error.start}") from None
        except RecursionError:
            raise UserError("nested too deeply") from None
        except ValueError as error:
            raise UserError(f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"not a JSON object but {JSON_KINDS[type(row)]}")
        return row


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raises ValueError for a key that it has twice: only one of the values would count."""
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {twice[:80]!r} stands in one object twice: leave one of them out")
    return content


def rows(root: str | None, name: str, indices: Collection[int] | None = None) -> Iterator[Line]:
    """Yield those rows of a file under `data.root`, or all of them, in ascending order. Blank lines are not rows.

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


def values(lines: Iterable[Line], read: Callable[[Row], Value]) -> Iterator[Value | None]:
    """`read` of each line, None for those that it refuses with a ValueError."""
    for line in lines:
        try:
            yield read(line.read())
        except ValueError:
            yield None


def column(read: Callable[[Row], Value]) -> Callable[[str | None, str], tuple[Value | None, ...]]:
    """Return a cached reader of `values` of a file: `read` of each row."""
    return remembered(lambda root, name: tuple(values(rows(root, name), read)))


def rows_by(read: Callable[[Row], str]) -> Callable[[str | None, str], Sequence[Sequence[int]]]:
    """Return a cached reader of the row numbers of a file, grouped by the text that `read` finds in a row, in the order
    of their first rows. A row that it refuses is a group of its own.
    """

    def numbers(root: str | None, name: str) -> Sequence[Sequence[int]]:
        texts = list(values(rows(root, name), read))
        groups = grouped(range(len(texts)), lambda number: number if texts[number] is None else texts[number])
        return list(groups.values())

    return remembered(numbers)


@remembered
def count(root: str | None, name: str) -> int:
    """Return number of rows of a file. Raises MissingFile."""
    with find(root, name).open("rb") as file:
        return sum(bool(line.strip()) for line in file)


def field(row: Row, name: str) -> Any:
    """Return a field of a row. Raises UserError if it is absent."""
    if name not in row:
        raise UserError(f"it has no {name}, only {', '.join(map(str, row)) or 'nothing'}")
    return row[name]


def text(row: Row, name: str) -> str:
    """Return a field that is a text. Raises UserError for another type and for a text that UTF-8 cannot encode."""
    value = field(row, name)
    if not isinstance(value, str):
        raise UserError(f"its {name} is {JSON_KINDS.get(type(value), type(value).__name__)}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"its {name} has an incomplete character (a lone surrogate): {error.reason} at {error.start}"
        ) from None
    return value


def nonempty_text(row: Row, name: str) -> str:
    """`text` that is not only white space. Raises UserError."""
    value = text(row, name)
    if not value.strip():
        raise UserError(f"its {name} is empty")
    return value


def integer(row: Row, name: str) -> int:
    """Return a field that is a whole number. Raises UserError for any other value."""
    value = field(row, name)
    if type(value) is not int:
        raise UserError(f"its {name} is {str(value)[:80]!r}: a whole number")
    return value


def texts(row: Row, name: str) -> tuple[str, ...]:
    """Return a field that is a list of at least one text. Raises UserError for any other value."""
    value = field(row, name)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        verb = "are" if name.endswith("s") else "is"
        raise UserError(f"its {name} {verb} {str(value)[:80]}: a list of at least one text")
    return tuple(value)


@dataclass(frozen=True, kw_only=True)
class RowTask(FromFiles, Task):
    """Base class of tasks whose samples are rows of files, usually of one. Sample i is the row at `row_places[i]`."""

    positive = ("samples", "max_new_tokens")  # settings that must be at least 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, *self.positive)
        limit_samples(self, lambda: len(self.row_places))

    @property
    def row_numbers(self) -> Sequence[int]:
        """The rows of the first file that become samples, counted from 0."""
        return range(count(self.root, self.files[0]))

    @property
    def row_places(self) -> Sequence[tuple[str, int]]:
        """The file and number of each row that becomes a sample, file by file in ascending order."""
        return [(self.files[0], number) for number in self.row_numbers]

    def read_lines(self, file: str, numbers: Collection[int] | None = None) -> Iterator[Line]:
        """Return those rows of a file, or all of them, in ascending order. Raises as `rows`."""
        return rows(self.root, file, numbers)

    @abstractmethod
    def row_reader(self, tokens: TokenCounter) -> Callable[[int, Row], Sample]:
        """Return the function that makes a sample of its index and row, and raises ValueError for an invalid row.

        Raises UserError if no row can become a sample or be scored: a template or a package is missing.
        """

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        read, places = self.row_reader(count_tokens), self.row_places
        require_samples(self, indices, len(places))
        for file in dict.fromkeys(file for file, _ in places):
            index_of = {places[index][1]: index for index in indices if places[index][0] == file}
            for line in self.read_lines(file, index_of):
                index = index_of[line.number]
                try:
                    sample = read(index, line.read())
                except TaskError:
                    raise
                except ValueError as error:
                    sample = InvalidSample(index, self.name, f"{line.place}: {error}")
                yield sample
