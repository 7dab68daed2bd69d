"""Rows that a folder should hold and does not, so that an incomplete folder never looks complete."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from kvbench.records import ResultsFolder
from kvbench.records.lines import Warn, listed
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, shortened

MISSING = "are missing"
"""What the warning says, for readers that know it (`--partial`)."""
_LISTED = 3


def count_missing(requested: Mapping[str, int], rows: pa.Table) -> int:
    """Return how many rows of the samples requested of each cell are not among `rows`, each (cell, sample) once."""
    codes = rows["cell"].combine_chunks().dictionary_encode()
    limits = np.array([requested.get(cell, 0) for cell in codes.dictionary.to_pylist()], np.int64)
    counted = rows["sample"].to_numpy() < limits[codes.indices.to_numpy()]
    return sum(requested.values()) - int(counted.sum())


def tell_missing(folder: ResultsFolder, rows: pa.Table, is_selection: bool, warn: Warn) -> None:
    """Warn of rows that commands asked for, and of rows files that were finished, and are not there.

    Of a selection only the cells count of which it has rows: what a lost row was is not known otherwise.
    """
    try:
        requested = folder.read_requested()
    except UserError as error:  # the next run of that command writes it again
        warn(str(error))
        requested = {}
    if is_selection:
        requested = {cell: requested[cell] for cell in rows["cell"].unique().to_pylist() if cell in requested}
    num_missing = count_missing(requested, rows)
    finished = listed(folder.path / "finished", ".json")
    lost = [path.stem for path in finished if not (folder.rows / f"{path.stem}.jsonl").exists()]
    if num_missing or lost:
        files = f", and {count_noun(len(lost), 'file')} of rows: {shortened(lost, _LISTED)}" if lost else ""
        total = f"{num_missing} of {sum(requested.values())} rows {MISSING}" if num_missing else f"rows {MISSING}"
        warn(
            f"{folder.path}: {total}{files}; kvbench status counts them, --partial reports without this line, "
            "kvbench cancel --requests withdraws them"
        )
