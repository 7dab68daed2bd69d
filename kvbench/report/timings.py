"""Reading what an efficiency task leaves beside its rows (`timings/*.jsonl`): a cell's repetitions as one summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.records import Timing
from kvbench.records.lines import read_lines
from kvbench.records.timing import ROOM
from kvbench.report.loading import describer, load_table
from kvbench.report.reading import Warn
from kvbench.report.tables.summary import budget_key
from kvbench.report.tables.where import NothingSelected, Where
from kvbench.support.errors import MissingFile

ASKED = ("model", "context_length", "policy", "score", "budget", "layout", "schedule")
STEP = "step_seconds"


@dataclass(frozen=True)
class Spread:
    """The median of some numbers and their quartiles; n says of how many."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Spread":
        """Quartiles as numpy interpolates them."""
        low, middle, high = np.percentile(numbers, (25, 50, 75))
        return cls(float(middle), float(low), float(high), len(numbers))


@dataclass(frozen=True)
class Timed:
    """A cell. asked: its columns of ``ASKED``; quantities: by name over its repetitions, ``step_seconds`` over the
    steps of all of them; error: why it has none.
    """

    cell: str
    asked: Mapping[str, Any]
    batch: int
    new_tokens: int
    quantities: Mapping[str, Spread]
    error: str | None = None

    def median(self, name: str) -> float | None:
        """The median of a quantity, None where there is none."""
        found = self.quantities.get(name)
        return None if found is None else found.median

    @property
    def tokens_per_second(self) -> float | None:
        """New tokens of all sequences in a second of steps."""
        step = self.median(STEP)
        return None if not step else self.batch / step

    def reached(self, seconds: str, flops: str | None, moved: str) -> float | None:
        """The least time that the device could take for a part, over the time that it took; None where not known.

        The roofline: the longer of its operations and its bytes at the speeds that were measured beside it.
        """
        took, least = self.median(seconds), self._least(flops, moved)
        return None if not took or least is None else max(least) / took

    def bound(self, flops: str | None, moved: str) -> str | None:
        """Which of the two would hold the device up: "flops" or "bytes"."""
        least = self._least(flops, moved)
        return None if least is None else ("flops" if least[0] > least[1] else "bytes")

    def _least(self, flops: str | None, moved: str) -> tuple[float, float] | None:
        names = (flops or moved, moved, "device_flops_per_second", "device_copy_bytes_per_second")
        work, traffic, multiplies, copies = (self.median(name) for name in names)
        if work is None or traffic is None or not multiplies or not copies:
            return None
        return (0.0 if flops is None else work / multiplies), traffic / copies


def timed_cells(results: Path, warn: Warn, where: Where | None = None) -> list[Timed]:
    """The timed cells of a folder, by model, batch, context length, policy, score and budget.

    Raises FileNotFoundError where there are no rows or none was timed, NothingSelected where none is selected,
    ValueError naming file and line for a broken one.
    """
    files = sorted((results / ROOM).glob("*.jsonl")) if results.is_dir() else []
    table = load_table(results, (*ASKED, "metric"), warn, where)
    found: dict[str, dict[int, Timing]] = {}
    for file in files:
        for timing in read_lines(file, Timing.from_json, "a timing", warn):
            found.setdefault(timing.cell, {})[timing.sample] = timing
    rows = [row for row in table.to_pylist() if row["metric"] == "seconds_per_token"]
    if not rows:
        if not files:
            raise MissingFile(f"{str(results)!r} has no {ROOM}/*.jsonl: kvbench run task=efficiency leaves them")
        raise NothingSelected("no selected row was timed: kvbench run task=efficiency times")
    describe, cells = describer(results), {row["cell"]: row for row in rows}
    errors = {row["cell"]: row["error"] for row in rows if row["error"]}
    timed = []
    for cell, row in cells.items():
        task: Mapping[str, Any] = (describe(cell) or {}).get("task", {})
        repeats = list(found.get(cell, {}).values())
        names = dict.fromkeys(name for one in repeats for name in one.quantities)
        quantities = {
            name: Spread.of([one.quantities[name] for one in repeats if name in one.quantities]) for name in names
        }
        if steps := [step for one in repeats for step in one.steps]:
            quantities[STEP] = Spread.of(steps)
        asked = {name: row[name] for name in ASKED}
        error = errors.get(cell) if not repeats else None
        timed.append(Timed(cell, asked, task.get("batch", 1), task.get("new_tokens", 0), quantities, error))
    return sorted(timed, key=_order)


def _order(one: Timed) -> tuple[Any, ...]:
    asked = one.asked
    policy = (asked["policy"] != "full", asked["policy"], asked["score"] or "")
    places = (asked["model"], one.batch, asked["context_length"] or 0, *policy)
    return (*places, *budget_key(asked["budget"]), asked["schedule"] or "", one.cell)
