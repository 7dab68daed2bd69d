"""`kvbench report rows`: every row of a results folder, for another program to read."""

import os
import warnings
from pathlib import Path
from typing import TextIO

from kvbench.records import COLUMNS
from kvbench.report.loading import check_format, describer, load, load_table
from kvbench.report.output import file_to, text_to
from kvbench.report.parquet import write_parquet
from kvbench.report.reading import Warn
from kvbench.report.tables.delimited import write_csv
from kvbench.report.tables.where import Where
from kvbench.support.errors import UserError

FORMATS = ("jsonl", "csv", "parquet")


def print_rows(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO | Path,
    warn: Warn = warnings.warn,
    where: Where | None = None,
) -> None:
    """Write every row: ``jsonl`` is lossless; in ``csv`` a missing value and an empty text are both blank.

    ``parquet`` goes to a path and can be read back in place of a folder: only half surrogate pairs and values that are
    no numbers are not as recorded.

    Raises ValueError for an unknown format and FileNotFoundError where there are no rows.
    """
    check_format(format, FORMATS)
    if format == "parquet":
        if not isinstance(out, Path):
            raise UserError("--format parquet is no text; name a file with --out FILE.parquet")
        table, describe = load_table(folder, COLUMNS, warn, where), describer(folder)
        file_to(out, lambda path: write_parquet(table, path, describe))
        return
    rows = load(folder, warn, where)
    with text_to(out) as stream:
        if format == "jsonl":
            stream.writelines(row.to_json() + "\n" for row in rows)
        else:
            write_csv(COLUMNS, rows, stream)
