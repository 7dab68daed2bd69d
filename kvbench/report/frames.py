"""Frames of rows: what tables, plots and pages read in the place of a results folder, as `kvbench.run` returns them.

A frame has a line for each row, and the columns of `kvbench.records.Row`; what was filtered out or changed by its owner
is so in every report. The folder that it came from is still needed for what is no row: the descriptions of cells, kept
sets, curves, prompts. `attrs["results"]` names it, and pandas keeps that through filters and copies.
"""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Union

import pyarrow as pa

from kvbench.records import COLUMNS, Row
from kvbench.records.columns import REQUIRED, TYPES, with_places
from kvbench.support.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

Source = Union[str, os.PathLike[str], "DataFrame"]
"""Where rows are: a results folder, a Parquet file of rows, or a frame of them."""
RESULTS = "results"
"""The key of a frame's `attrs` with the folder of its rows."""


def frame_of(rows: Iterable[Row], folder: Path) -> "DataFrame":
    """Return rows of a folder as a frame; a missing value is None, or NaN among numbers."""
    import pandas  # late, as commands that only write rows need none

    frame = pandas.DataFrame([[getattr(row, name) for name in COLUMNS] for row in rows], columns=list(COLUMNS))
    frame.attrs[RESULTS] = str(folder)
    return frame


def place_of(source: Source) -> Path | None:
    """Return the folder or Parquet file of a source; None for a frame that names none."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source)
    folder = source.attrs.get(RESULTS)
    return None if folder is None else Path(folder)


def source_name(source: Source) -> str:
    """Return a source as messages call it."""
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the frame"


def table_of_frame(frame: "DataFrame", columns: Collection[str]) -> pa.Table:
    """Return these columns of a frame, with ``file`` and ``line`` as other tables of rows.

    A column that the frame lacks has no values. Raises UserError for a frame without a column that rows must have, for
    values of another type, and for two rows of one cell and sample.
    """
    if absent := [name for name in REQUIRED if name not in frame.columns]:
        raise UserError(f"the frame has no column {absent[0]!r}: rows have it, as those of kvbench.run")
    read = [name for name in COLUMNS if name in columns]
    table = pa.table([_array(frame, name) for name in read], names=read)
    if (again := frame.duplicated(["cell", "sample"])).any():
        cell, sample = frame.loc[again, ["cell", "sample"]].iloc[0]
        raise UserError(f"the frame has two rows of cell {cell}, sample {sample}: drop one of them")
    return with_places(table, read, place_of(frame) or Path("frame"), range(1, len(frame) + 1))


def _array(frame: "DataFrame", name: str) -> pa.Array | pa.ChunkedArray:
    if name not in frame.columns:
        return pa.nulls(len(frame), TYPES[name])
    try:
        return pa.array(frame[name], type=TYPES[name], from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"the frame's column {name!r} holds other values than rows: {error}") from error
