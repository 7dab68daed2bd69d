"""`kvbench report rows`: every row, in a format that other programs read."""

import os
import warnings
from pathlib import Path
from typing import TextIO

from kvbench.records import COLUMNS
from kvbench.records.lines import Warn
from kvbench.records.moments import as_metadata, spans_of
from kvbench.records.parquet_rows import write_parquet
from kvbench.report.formats.data import write_csv
from kvbench.report.report_file import check_format, check_parquet, file_to, text_to
from kvbench.report.rows import describer, load, load_table
from kvbench.report.selection import Where

ROW_FORMATS = ("jsonl", "csv", "parquet")


def print_rows(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO | Path,
    warn: Warn = warnings.warn,
    where: Where | None = None,
) -> None:
    """Write every row: ``jsonl`` is lossless; in ``csv`` a missing value and an empty text are both blank.

    ``parquet`` goes to a path and can be read in place of a folder; only half surrogate pairs and values that are not
    numbers differ from what was recorded.
    """
    check_format(format, ROW_FORMATS)
    if format == "parquet":
        file = check_parquet(out)
        table, describe = load_table(folder, COLUMNS, warn, where), describer(folder)
        spans = spans_of(Path(folder), table)
        with file_to(file) as path:
            write_parquet(table, path, describe, as_metadata(spans))
        return
    rows = load(folder, warn, where)
    with text_to(out) as stream:
        if format == "jsonl":
            stream.writelines(row.to_json() + "\n" for row in rows)
        else:
            write_csv([COLUMNS, *([getattr(row, name) for name in COLUMNS] for row in rows)], stream)
