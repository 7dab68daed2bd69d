"""Which curve, timing or kept set belongs to a row: the one in the file with the name of its rows file.

A row that was made again has its own. A line in another file, as after files were moved, is taken where no other line
of that cell and sample differs. Two lines that differ are refused, as rows are.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

from kvbench.records.lines import Warn
from kvbench.records.row import COLUMNS
from kvbench.records.rows import recorded
from kvbench.records.sidecars import Curve, KeptSets, Timing, named_lines
from kvbench.support.errors import UserError

OwnLine = TypeVar("OwnLine", Curve, Timing, KeptSets)
Key = tuple[str, int]
"""A cell and a sample."""


def read_kept(folder: str | os.PathLike[str], warn: Warn = warnings.warn) -> dict[Key, KeptSets]:
    """Return the kept sets of the rows of a results folder by (cell, sample), each from its own file.

    Masks whose hash is not the ``kept_sha256`` of their row are left out with a warning. Raises UserError for lines
    that contradict each other, and as `read_sidecar`.
    """
    lines, kept = lines_by_file(folder, KeptSets, warn), dict[Key, KeptSets]()
    if not lines:
        return kept
    rows = recorded(folder, COLUMNS, lambda _: None)  # all columns: a row with a fault in any has no masks
    for row in rows.select(["cell", "sample", "kept_sha256", "file"]).to_pylist():
        key = row["cell"], row["sample"]
        line = sidecar_of(folder, lines.get(key, {}), Path(row["file"]).stem)
        if line is not None and are_of(row["kept_sha256"], line, folder, warn):
            kept[key] = line
    return kept


def lines_by_file(folder: str | os.PathLike[str], kind: type[OwnLine], warn: Warn) -> dict[Key, dict[str, OwnLine]]:
    """Return the lines of each cell and sample by the names of their files.

    Raises UserError for two lines of one file that differ, and as `read_sidecar`.
    """
    lines: dict[Key, dict[str, OwnLine]] = {}
    for name, line in named_lines(folder, kind, warn):
        if lines.setdefault((line.cell, line.sample), {}).setdefault(name, line) != line:
            refuse(folder, f"{kind.folder}/{name}.jsonl", line, "has two lines that differ")
    return lines


def sidecar_of(folder: str | os.PathLike[str], lines: Mapping[str, OwnLine], file: str) -> OwnLine | None:
    """Of the lines of its cell and sample, the line of a row of the rows file `file`; None if there are none.

    Raises UserError for lines of other files that differ.
    """
    line = lines.get(file, next(iter(lines.values()), None))
    if line is not None and file not in lines and any(other != line for other in lines.values()):
        refuse(folder, line.folder, line, "has lines in several files that differ")
    return line


def are_of(kept_sha256: str | None, line: KeptSets, folder: str | os.PathLike[str], warn: Warn) -> bool:
    """Return whether masks belong to their row; if not, a warning. A row may have no hash, and a line no masks."""
    if line.masks is None or kept_sha256 in (None, line.sha256):
        return True
    where = f"{os.fspath(folder)}/{line.folder}"
    warn(f"{where}: the masks of cell {line.cell}, sample {line.sample} do not match its row: left out")
    return False


def refuse(folder: str | os.PathLike[str], where: str, line: OwnLine, fault: str) -> NoReturn:
    """Raise UserError about a line."""
    raise UserError(
        f"{os.fspath(folder)}/{where}: cell {line.cell}, sample {line.sample} {fault}; remove the wrong line, or move "
        "its file away"
    )
