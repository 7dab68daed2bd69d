"""The way in for every report: the rows of a folder, or one line about why there are none."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kvbench.records import ResultsFolder, Row, read_rows


def check_format(format: str, known: Sequence[str]) -> None:
    """Raises ValueError for a format that is not known."""
    if format not in known:
        raise ValueError(f"there is no format {format!r}; choose --format {'|'.join(known)}")


def load(folder: str | os.PathLike[str], warn: Callable[[str], None] | None = None) -> list[Row]:
    """The rows of a folder as `kvbench.records.read_rows` gives them.

    Raises FileNotFoundError where there are none, and ValueError naming file and line for a broken one.
    """
    path = Path(folder)
    rows = read_rows(folder, warn) if warn else read_rows(folder)
    if not rows:
        if path.is_dir():
            found = "has no rows yet" if ResultsFolder(folder).rows.is_dir() else "is not a results folder"
        else:
            found = "is not a folder" if path.exists() else "does not exist"
        fix = "make rows with `kvbench run`, or name the folder of a run with --results"
        raise FileNotFoundError(f"results folder {os.fspath(folder)!r} {found}; {fix}")
    return rows
