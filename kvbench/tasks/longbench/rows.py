"""Rows of LongBench: what a task needs of them, checked, and which of them lie in a range of lengths."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import find, remembered

Bucket = Literal["0-4k", "4-8k", "8k+"]
BUCKETS = get_args(Bucket)
"""The ranges of `length` that LongBench-E reports: below 4000, below 8000, and the rest."""


def fields(row: Mapping[str, Any]) -> dict[str, str]:
    """What a template is filled with. Raises ValueError for a field that is not there or no text, an empty context."""
    found = {name: jsonl.text(row, name) for name in ("context", "input")}
    if not found["context"].strip():
        raise UserError("its context is empty")
    return found


def answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The references. Raises ValueError for anything but a list of at least one text."""
    return _texts(row, "answers")


def classes(root: str | None, file: str) -> tuple[str, ...]:
    """What an answer is one of: `all_classes` of the last row that has any, as in eval.py; all rows have the same.

    Raises ValueError where no row has a list of at least one text.
    """
    for line in reversed(list(jsonl.rows(root, file, range(jsonl.count(root, file))))):
        try:
            return _texts(line.read(), "all_classes")
        except ValueError:
            continue
    raise UserError(f"{find(root, file)} has no row with all_classes: a list of at least one text")


def length(row: Mapping[str, Any]) -> int:
    """Words in English and code, characters in Chinese. Raises ValueError for anything but a whole number."""
    value = jsonl.field(row, "length")
    if type(value) is not int:
        raise UserError(f"its length is {str(value)[:80]!r}: a whole number")
    return value


def bucket_of(length: int) -> Bucket:
    """The range of a row's `length`, words in English and in code."""
    return "0-4k" if length < 4000 else "4-8k" if length < 8000 else "8k+"


def within(root: str | None, file: str, bucket: Bucket) -> tuple[int, ...]:
    """Numbers of the rows of a range, in order. A row that has no length counts in all of them."""
    return tuple(number for number, one in enumerate(_buckets(root, file)) if one in (bucket, None))


@remembered
def _buckets(root: str | None, file: str) -> tuple[Bucket | None, ...]:
    return tuple([_bucket(line) for line in jsonl.rows(root, file, range(jsonl.count(root, file)))])


def _bucket(line: jsonl.Line) -> Bucket | None:
    try:
        found: Bucket = bucket_of(length(line.read()))
    except ValueError:
        return None
    return found


def _texts(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = jsonl.field(row, name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise UserError(f"its {name} are {str(values)[:80]}: a list of at least one text")
    return tuple(values)
