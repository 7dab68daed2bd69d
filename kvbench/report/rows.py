"""`kvbench report rows`: every row of a results folder, for another program to read."""

import os
from collections.abc import Callable
from typing import TextIO

from kvbench.records import COLUMNS
from kvbench.report.delimited import write_csv
from kvbench.report.loading import check_format, load

FORMATS = ("jsonl", "csv")


def print_rows(
    folder: str | os.PathLike[str], format: str, out: TextIO, warn: Callable[[str], None] | None = None
) -> None:
    """Write every row: ``jsonl`` is lossless; in ``csv`` a missing value and an empty text are both blank.

    Raises ValueError for an unknown format and FileNotFoundError where there are no rows.
    """
    check_format(format, FORMATS)
    rows = load(folder, warn)
    if format == "jsonl":
        out.writelines(row.to_json() + "\n" for row in rows)
    else:
        write_csv(COLUMNS, rows, out)
