"""Curves, timings and kept sets beside rows, by the rule of `kvbench.records.own_lines`; lost ones are counted.

A curve whose mean is not the value of its row is refused.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

from kvbench.records import Curve, KeptSets, ResultsFolder, Timing
from kvbench.records.lines import MISSING, Warn, listed
from kvbench.records.own_lines import OwnLine, are_of, lines_by_file, refuse, sidecar_of
from kvbench.records.rows import recorded
from kvbench.report.frames import RESULTS, Source, place_of, source_name
from kvbench.support.errors import MissingFile

TOLERANCE = 1e-9
"""How far the mean of a curve may be from the value of its row, relatively: its sums are rounded range by range."""
NAMES: Mapping[type, str] = {Curve: "curves", Timing: "timings", KeptSets: "kept sets"}
METRICS: Mapping[type, str] = {Curve: "nll", Timing: "seconds_per_token"}
"""The metric of the rows that have a line each. A process records the kept sets of all its rows, or of none."""
_COLUMNS = ("metric", "value", "kept_sha256")


def check_lines(source: Source, kind: type[OwnLine], fix: str) -> None:
    """Raise MissingFile if no such lines were recorded beside rows; fix: how they are recorded."""
    folder = place_of(source)
    if folder is None:
        fix = f'they lie in the folder of results, which it names in attrs["{RESULTS}"]: set it'
    elif listed(folder / kind.folder, ".jsonl"):
        return
    raise MissingFile(f"{source_name(source)!r} has no {kind.folder}/*.jsonl; {fix}")


def lines_beside(source: Source, kind: type[OwnLine], warn: Warn) -> dict[tuple[str, int], OwnLine]:
    """Return the line of every row of a folder that has one, by (cell, sample). How many rows lack theirs goes to
    ``warn``.

    Masks of kept sets that do not belong to their row are left out with a warning. Raises UserError for lines that
    contradict each other or their row, and as `kvbench.records.read_sidecar`.
    """
    if (folder := place_of(source)) is None:
        return {}
    by_file = lines_by_file(folder, kind, warn)
    files = _files_with(ResultsFolder(folder), kind)
    rows = recorded(folder, _COLUMNS, lambda text: None).to_pylist() if by_file or files else []
    lines: dict[tuple[str, int], OwnLine] = {}
    lost = mismatched = 0
    for row in rows:
        key, file = (row["cell"], row["sample"]), os.path.basename(row["file"]).removesuffix(".jsonl")
        line = sidecar_of(folder, by_file.get(key, {}), file)
        if line is None:
            lost += _should_have(row, file in files, kind)
            continue
        if isinstance(line, Curve) and not _is_mean_of(line, row):
            refuse(folder, kind.folder, line, f"has a curve whose mean is not the value of its row, {row['value']!r}")
        if isinstance(line, KeptSets) and not are_of(row["kept_sha256"], line, folder, warn):
            mismatched += 1
        else:
            lines[key] = line
    if lost:
        counted = f"{lost} of {lost + mismatched + len(lines)} {NAMES[kind]}"
        warn(f"{os.fspath(folder)}: {counted} {MISSING}; their rows are there")
    return lines


def _files_with(folder: ResultsFolder, kind: type[OwnLine]) -> set[str]:
    """Return names of the rows files whose writers recorded such lines, including lost ones."""
    names = {path.stem for path in listed(folder.path / kind.folder, ".jsonl")}
    for path in listed(folder.path / "finished", ".json"):
        finished = folder.read_finished(path.stem)
        if finished is not None and kind.folder in finished.sidecars:
            names.add(path.stem)
    return names


def _should_have(row: Mapping[str, Any], is_recorded: bool, kind: type[OwnLine]) -> bool:
    """Return whether a line of a row was recorded; `is_recorded`: whether its file has such lines."""
    if row["error"] is not None:
        return False
    return row["metric"] == METRICS[kind] if kind in METRICS else is_recorded and row["kept_sha256"] is not None


def _is_mean_of(curve: Curve, row: Mapping[str, Any]) -> bool:
    if row["value"] is None or curve.metric != row["metric"] or not sum(curve.counts):
        return True
    return math.isclose(math.fsum(curve.sums) / sum(curve.counts), row["value"], rel_tol=TOLERANCE)
