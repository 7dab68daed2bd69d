"""The gate over the committed rows: the first samples of every cell, made again and compared.

`kvbench gate` says whether prompts, tokens and bytes are the same and no cell became worse by more than chance. Numeric
noise of another processor moves few kept sets and few answers; so on top of it, whatever the machine:

* at most a fifth of all kept sets may differ, and three quarters of those of any one cell that has eight;
* where a kept set is the same, so is the answer, unless two tokens were nearly as likely (top-2 margin below 0.001).
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from kvbench.records import Row
from kvbench.report.gate import check
from kvbench.report.gate_text import text
from kvbench.report.loading import describer, load
from kvbench.report.pairing import Side
from reference_results.making import make_all
from reference_results.packing import GATED
from reference_results.sweeps import Part

MOVED = 0.2
"""The share of kept sets that noise may move: 1 % with other vector instructions of torch, most in bfloat16."""
MOVED_OF_CELL, ENOUGH = 0.75, 8
TIED = ("key_norm",)
"""Scores that noise ranks: keys of a repeated sentence have equal norms, and their last digits decide."""
MARGIN = 1e-3
_LISTED = 5


def gate(part: Part, results: Path, reference: Path, processes: int) -> int:
    """Make the first samples of a part again and compare; 5 where something is worse or another."""
    shutil.rmtree(results, ignore_errors=True)
    code = make_all([part], results, GATED, processes)
    if code:
        return code
    return compared(reference / f"{part.name}.parquet", results / part.name)


def compared(committed: Path, fresh: Path) -> int:
    """Print what differs. Exit code 5 where it is more than noise."""
    where = {"sample": [str(sample) for sample in range(GATED)]}
    warn = lambda words: print(f"reference: {words}", file=sys.stderr)  # noqa: E731
    baseline = Side("committed", load(committed, warn, where), str(committed), describer(committed))
    current = Side("fresh", load(fresh, warn, where), str(fresh), describer(fresh))
    found = check(baseline, current, kept="note")
    print("\n".join(line for line in text(found).splitlines() if not line.strip().startswith("kept sets:")))
    more = differences(baseline.rows, current.rows)
    for line in more:
        print(f"  {line}")
    return 0 if found.passed and not more else 5


def differences(baseline: Sequence[Row], current: Sequence[Row]) -> list[str]:
    """What noise does not explain in rows of the same cells and samples."""
    fresh = {_key(row): row for row in current}
    both = [(row, fresh[_key(row)]) for row in baseline if _key(row) in fresh and row.error is None]
    hashed = [(row, other) for row, other in both if None not in (row.kept_sha256, other.kept_sha256)]
    same = [(row, other) for row, other in hashed if row.kept_sha256 == other.kept_sha256]
    moved = len(hashed) - len(same)
    found = []
    if moved > MOVED * len(hashed):
        found.append(f"kept sets: {moved} of {len(hashed)} differ, more than a fifth: not noise")
    cells: dict[tuple[str | int | None, ...], list[bool]] = {}
    for row, other in hashed:
        if row.score not in TIED:
            cells.setdefault((row.policy, row.score, row.budget), []).append(row.kept_sha256 != other.kept_sha256)
    broken = [cell for cell, one in cells.items() if len(one) >= ENOUGH and sum(one) > MOVED_OF_CELL * len(one)]
    if broken:
        named = "; ".join(" ".join(str(one) for one in cell if one is not None) for cell in broken[:_LISTED])
        found.append(f"kept sets: of {len(broken)} cells more than three quarters differ: {named}")
    other_answers = [row for row, other in same if row.prediction != other.prediction and _sure(row, other)]
    if other_answers:
        named = "; ".join(" ".join(str(one) for one in _key(row) if one is not None) for row in other_answers[:_LISTED])
        found.append(f"answers: {len(other_answers)} of {len(same)} differ from the same kept pairs: {named}")
    print(f"reference: {len(same)} of {len(hashed)} kept sets are the same, {len(both)} rows compared")
    return found


def _key(row: Row) -> tuple[str | int | None, ...]:
    return row.task, row.policy, row.score, row.budget, row.schedule, row.layout, row.sample


def _sure(row: Row, other: Row) -> bool:
    """Whether noise cannot have flipped a token of either answer."""
    return min((MARGIN if one.top2_margin is None else one.top2_margin) for one in (row, other)) >= MARGIN
