"""Reading what a run may leave beside its rows: a metric over positions (`curves/*.jsonl`), a line a row."""

from collections.abc import Set
from pathlib import Path

from kvbench.records.curve import ROOM, Curve
from kvbench.records.lines import read_lines
from kvbench.report.reading import Warn
from kvbench.support.errors import MissingFile


def read_curves(results: Path, cells: Set[str], warn: Warn) -> list[Curve]:
    """The curves of these cells, each sample once, the later where there are two.

    Raises FileNotFoundError where the folder has none at all, ValueError naming file and line for a broken one.
    """
    files = sorted((results / ROOM).glob("*.jsonl")) if results.is_dir() else []
    if not files:
        raise MissingFile(f"{str(results)!r} has no {ROOM}/*.jsonl: a perplexity task leaves them")
    found = {}
    for file in files:
        for curve in read_lines(file, Curve.from_json, "a curve", warn):
            if curve.cell in cells:
                found[curve.cell, curve.sample] = curve
    return list(found.values())
