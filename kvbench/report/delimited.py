"""Comma-separated values as RFC 4180 has them, with a bare newline at the end of a line; missing is blank."""

import csv
from collections.abc import Iterable, Sequence
from typing import Any, TextIO


def write_csv(columns: Sequence[str], items: Iterable[Any], out: TextIO) -> None:
    """One line an item, its attributes named by ``columns``; numbers with all their digits."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for item in items:
        writer.writerow([_text(getattr(item, name)) for name in columns])


def _text(value: Any) -> Any:
    """Half a surrogate pair, which a model can produce, has no UTF-8 form: write it as an escape."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
