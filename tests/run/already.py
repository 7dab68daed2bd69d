"""The rows of a folder that a run need not make again."""

import os

from kvbench.records import read_rows

Key = tuple[str, int]
"""A cell and a sample."""


def recorded_samples(folder: str | os.PathLike[str], retry_errors: bool = False) -> set[Key]:
    """Return the cell and sample of the rows that count; without those that failed, where they are tried again."""
    rows = read_rows(folder, lambda _: None)
    return {(row.cell, row.sample) for row in rows if not (retry_errors and row.error is not None)}
