"""What a run may leave beside its rows: a metric over positions (`curves/*.jsonl`), a line a row."""

import json
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.records.lines import read_lines
from kvbench.report.reading import Warn


@dataclass(frozen=True)
class Curve:
    """A metric over positions of one row: sums and counts over tokens in ``edges[i] <= position < edges[i + 1]``."""

    cell: str
    sample: int
    metric: str
    edges: tuple[int, ...]
    sums: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def from_json(cls, line: str | bytes) -> "Curve":
        """What a line says. Raises ValueError for one that says something else."""
        try:
            data: dict[str, Any] = json.loads(line)
            edges, sums, counts = (tuple(data[name]) for name in ("edges", "sums", "counts"))
            made = cls(data["cell"], data["sample"], data["metric"], edges, sums, counts)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a curve: {type(error).__name__}: {error}") from error
        if not len(edges) - 1 == len(sums) == len(counts) or list(edges) != sorted(set(edges)):
            raise ValueError(f"{len(sums)} sums and {len(counts)} counts do not lie between {len(edges)} rising edges")
        return made


def read_curves(results: Path, cells: Set[str], warn: Warn) -> list[Curve]:
    """The curves of these cells, each sample once, the later where there are two.

    Raises FileNotFoundError where the folder has none at all, ValueError naming file and line for a broken one.
    """
    files = sorted((results / "curves").glob("*.jsonl")) if results.is_dir() else []
    if not files:
        raise FileNotFoundError(f"{str(results)!r} has no curves/*.jsonl: a perplexity task leaves them")
    found = {}
    for file in files:
        for curve in read_lines(file, Curve.from_json, "a curve", warn):
            if curve.cell in cells:
                found[curve.cell, curve.sample] = curve
    return list(found.values())
