"""The gate over the committed rows: the first samples of every cell, made again and compared.

`kvbench gate` says whether prompts, tokens and bytes are the same and no cell became worse by more than chance. Numeric
noise of another processor moves few kept sets and few answers; so on top of it, whatever the machine:

* at most a fifth of all kept sets may differ, and three quarters of those of any one cell that has eight;
* where a kept set is the same, so is the answer, unless two tokens were nearly as likely (top-2 margin below 0.001);
* where an answer is the same, so is its value;
* of a book, where it is at hand, the mean loss of a token may differ by 0.02 nats, and what is held not at all.
"""

import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path

from kvbench.records import Row
from kvbench.report.compare.gate import check, text
from kvbench.report.compare.paired_rows import Side
from kvbench.report.rows import describer, load
from reference_results.pack import GATED
from reference_results.sweeps import Part
from reference_results.workers import make_all, read_parts

MOVED = 0.2
"""The share of kept sets that noise may move: 0.2 % with other vector instructions of torch, most in bfloat16."""
MOVED_OF_CELL, ENOUGH = 0.75, 8
TIED = ("key_norm",)
"""Scores that noise ranks: keys of a repeated sentence have equal norms, and their last digits decide."""
MARGIN = 1e-3
NATS = 0.02
"""A third of what lies between two policies that differ little."""
_LISTED = 5


def gate(parts: Sequence[Part], results: Path, reference: Path, processes: int) -> int:
    """Make the first samples of parts, and the book, again and compare; 5 where something is worse or another."""
    shutil.rmtree(results, ignore_errors=True)
    code = make_all(parts, results, GATED, processes)
    if code:
        return code
    cells = read_parts(results)
    codes = []
    for part in (part for part in parts if part.name in cells):
        committed = reference / (part.name if part.book else f"{part.name}.parquet")
        check = book_compared if part.book else compared
        codes.append(check(committed, results, cells[part.name]))
    return max(codes)


def book_compared(committed: Path, fresh: Path, cells: Collection[str]) -> int:
    """Print where the losses of a book differ. Exit code 5 where it is by more than noise."""
    warn = lambda words: print(f"reference: {words}", file=sys.stderr)  # noqa: E731
    now = {_key(row): row for row in load(fresh, warn, {"cell": list(cells)})}
    problems = []
    for row in load(committed, warn):
        other, named = now.get(_key(row)), " ".join(str(part) for part in (row.policy, row.score, row.budget) if part)
        if other is None or other.value is None or row.value is None:
            problems.append(f"{named}: no loss: {other and other.error}")
        elif abs(other.value - row.value) > NATS:
            problems.append(f"{named}: {row.value:.4f} nats a token before, {other.value:.4f} now")
        elif (other.cache_bytes, other.prompt_sha256) != (row.cache_bytes, row.prompt_sha256):
            problems.append(f"{named}: another text, or other bytes held")
    print("\n".join([f"reference: {len(now)} cells of a book compared", *(f"  {line}" for line in problems)]))
    return 5 if problems else 0


def compared(committed: Path, fresh: Path, cells: Collection[str] | None = None) -> int:
    """Print what differs, of these cells of `fresh` or all. Exit code 5 where it is more than noise."""
    where = {"sample": [str(sample) for sample in range(GATED)]}
    own = where if cells is None else where | {"cell": list(cells)}
    warn = lambda words: print(f"reference: {words}", file=sys.stderr)  # noqa: E731
    baseline = Side("committed", load(committed, warn, where), str(committed), describer(committed))
    current = Side("fresh", load(fresh, warn, own), str(fresh), describer(fresh))
    result = check(baseline, current, kept="note")
    print("\n".join(line for line in text(result).splitlines() if not line.strip().startswith("kept sets:")))
    more = differences(baseline.rows, current.rows)
    for line in more:
        print(f"  {line}")
    return 0 if result.passed and not more else 5


def differences(baseline: Sequence[Row], current: Sequence[Row]) -> list[str]:
    """What noise does not explain in rows of the same cells and samples."""
    fresh = {_key(row): row for row in current}
    both = [(row, fresh[_key(row)]) for row in baseline if _key(row) in fresh and row.error is None]
    hashed = [(row, other) for row, other in both if None not in (row.kept_sha256, other.kept_sha256)]
    same = [(row, other) for row, other in hashed if row.kept_sha256 == other.kept_sha256]
    moved = len(hashed) - len(same)
    problems = []
    if moved > MOVED * len(hashed):
        problems.append(f"kept sets: {moved} of {len(hashed)} differ, more than a fifth: not noise")
    cells: dict[tuple[str | int | None, ...], list[bool]] = {}
    for row, other in hashed:
        if row.score not in TIED:
            cells.setdefault((row.policy, row.score, row.budget), []).append(row.kept_sha256 != other.kept_sha256)
    broken = [
        cell
        for cell, changes in cells.items()
        if len(changes) >= ENOUGH and sum(changes) > MOVED_OF_CELL * len(changes)
    ]
    if broken:
        problems.append(f"kept sets: of {len(broken)} cells more than three quarters differ: {_named(broken)}")
    other_answers = [row for row, other in same if row.prediction != other.prediction and _sure(row, other)]
    if other_answers:
        named = _named(map(_key, other_answers))
        problems.append(f"answers: {len(other_answers)} of {len(same)} differ from the same kept pairs: {named}")
    other_values = [row for row, other in both if row.prediction == other.prediction and row.value != other.value]
    if other_values:
        named = _named(map(_key, other_values))
        problems.append(f"values: {len(other_values)} of {len(both)} differ for the same answer: {named}")
    print(f"reference: {len(same)} of {len(hashed)} kept sets are the same, {len(both)} rows compared")
    return problems


def _named(keys: Iterable[tuple[str | int | None, ...]]) -> str:
    """The first few of some cells or rows, each in its words."""
    return "; ".join(" ".join(str(part) for part in key if part is not None) for key in islice(keys, _LISTED))


def _key(row: Row) -> tuple[str | int | None, ...]:
    return row.task, row.policy, row.score, row.budget, row.schedule, row.layout, row.sample


def _sure(row: Row, other: Row) -> bool:
    """Whether noise cannot have flipped a token of either answer."""
    return min((MARGIN if side.top2_margin is None else side.top2_margin) for side in (row, other)) >= MARGIN
