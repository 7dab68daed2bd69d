"""Rows of a CSV file: every field is the text that stands there."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from kvbench.support.errors import UserError


def csv_rows(file: Path) -> Iterator[dict[str, str]]:
    """Yield every row by the names of the header, as Python's `csv` reads it, one at a time. A byte order mark is no
    text.

    Raises UserError for what is no CSV in UTF-8, a header that repeats a name, and rows of another length.
    """
    csv.field_size_limit(sys.maxsize)  # a chapter is longer than the default limit of 128 KiB
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            names = list(reader.fieldnames or ())
            if repeated := [name for name in names if names.count(name) > 1]:
                raise UserError(f"its header has {repeated[0]!r} twice: rename one of them")
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"a row and the header have different numbers of fields (line {reader.line_num})")
                yield row
        except UnicodeDecodeError as error:
            raise UserError(f"it is not UTF-8: {error.reason} after line {reader.line_num}") from None
        except csv.Error as error:
            raise UserError(f"it is not CSV: {error} (line {reader.line_num})") from None
