"""The lines beside rows, curves, timings and kept sets: a row has that of its own file, once; lost ones are counted.

A line belongs to the row of its cell and sample in the rows file of the same name: a row that was made again has its
own. Two lines of one row that differ are refused, as rows are, and a curve whose mean is not the value of its row.
"""

import math
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from kvbench.records import Curve, KeptSets, ResultsFolder, Timing
from kvbench.records.lines import Warn
from kvbench.records.sidecars import named_lines
from kvbench.report.missing import MISSING
from kvbench.report.rows import recorded
from kvbench.support.errors import UserError

Line = TypeVar("Line", Curve, Timing, KeptSets)
TOLERANCE = 1e-9
"""How far the mean of a curve may be from the value of its row, relatively: its sums are rounded range by range."""
NAMES: Mapping[type, str] = {Curve: "curves", Timing: "timings", KeptSets: "kept sets"}
METRICS: Mapping[type, str] = {Curve: "nll", Timing: "seconds_per_token"}
"""The metric of the rows that have a line each. A process records the kept sets of all its rows, or of none."""
_COLUMNS = ("metric", "value", "kept_sha256")


def lines_beside(folder: str | os.PathLike[str], kind: type[Line], warn: Warn) -> dict[tuple[str, int], Line]:
    """The line of every row that has one, by (cell, sample). How many rows lack theirs goes to ``warn``.

    Masks of kept sets that are not those of their row are left out with a warning. Raises UserError for lines that
    contradict each other or their row, and as `kvbench.records.read_sidecar`.
    """
    by_file: dict[tuple[str, int], dict[str, Line]] = {}
    for name, line in named_lines(folder, kind, warn):
        first = by_file.setdefault((line.cell, line.sample), {}).setdefault(name, line)
        if first != line:
            _refuse(folder, f"{kind.folder}/{name}.jsonl", line, "has two lines that differ")
    files = _files_with(ResultsFolder(folder), kind)
    rows = recorded(folder, _COLUMNS, lambda text: None).to_pylist() if by_file or files else []
    lines: dict[tuple[str, int], Line] = {}
    mismatched: list[tuple[str, int]] = []
    lost = 0
    for row in rows:
        key, file = (row["cell"], row["sample"]), os.path.basename(row["file"]).removesuffix(".jsonl")
        candidates = by_file.get(key, {})
        line = candidates.get(file, next(iter(candidates.values()), None))
        if line is None:
            lost += _should_have(row, file in files, kind)
            continue
        if file not in candidates and any(other != line for other in candidates.values()):
            _refuse(folder, kind.folder, line, "has lines in several files that differ")
        if isinstance(line, Curve) and not _is_mean_of(line, row):
            _refuse(folder, kind.folder, line, f"has a curve whose mean is not the value of its row, {row['value']!r}")
        lines[key] = line
        if isinstance(line, KeptSets) and line.masks is not None and row["kept_sha256"] not in (None, line.sha256):
            where = f"{os.fspath(folder)}/{kind.folder}: the masks of cell {line.cell}, sample {line.sample}"
            warn(f"{where} do not match its row: left out")
            mismatched.append(key)
    if lost:
        warn(f"{os.fspath(folder)}: {lost} of {lost + len(lines)} {NAMES[kind]} {MISSING}; their rows are there")
    return {key: line for key, line in lines.items() if key not in mismatched}


def _files_with(folder: ResultsFolder, kind: type[Line]) -> set[str]:
    """The names of the rows files whose writers recorded such lines, whether those are still there or not."""
    names = {path.stem for path in (folder.path / kind.folder).glob("*.jsonl")}
    for path in (folder.path / "finished").glob("*.json"):
        finished = folder.read_finished(path.stem)
        if finished is not None and kind.folder in finished.sidecars:
            names.add(path.stem)
    return names


def _should_have(row: Mapping[str, Any], is_recorded: bool, kind: type[Line]) -> bool:
    """Whether a line of a row was recorded; `is_recorded`: whether its file has such lines."""
    if row["error"] is not None:
        return False
    return row["metric"] == METRICS[kind] if kind in METRICS else is_recorded and row["kept_sha256"] is not None


def _is_mean_of(curve: Curve, row: Mapping[str, Any]) -> bool:
    if row["value"] is None or curve.metric != row["metric"] or not sum(curve.counts):
        return True
    return math.isclose(math.fsum(curve.sums) / sum(curve.counts), row["value"], rel_tol=TOLERANCE)


def _refuse(folder: str | os.PathLike[str], where: str, line: Line, what: str) -> None:
    raise UserError(
        f"{os.fspath(folder)}/{where}: cell {line.cell}, sample {line.sample} {what}; remove the wrong line, or move "
        "its file away"
    )
