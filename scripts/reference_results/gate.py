"""The gate over the committed rows: some of them, made again and compared.

`kvbench gate` says whether prompts, tokens and bytes are the same, and whether a policy, or all of them, became worse
by more than chance. The rows of results/reference/gate.parquet (`reference_results.rotation`) suffice to show 5 points
over all and 40 in a policy; where there is no such file the first samples are made again, and may be undecided. Numeric
noise of another processor moves few kept sets and few answers; so on top of it, whatever the machine:

* at most a fifth of all kept sets may differ, and three quarters of those of any policy and score that has eight;
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
from kvbench.report.compare.gate import check
from kvbench.report.compare.gate_formats import text
from kvbench.report.compare.losses import Effects
from kvbench.report.compare.paired_rows import Side
from kvbench.report.rows import describer, load, load_table
from reference_results.pack import GATE, HASHED
from reference_results.rotation import samples_of
from reference_results.sweeps import RowSet
from reference_results.workers import make_all, read_parts

MOVED = 0.2
"""The share of kept sets that noise may move: 0.2 % with other vector instructions of torch, most in bfloat16."""
MOVED_OF_METHOD, ENOUGH = 0.75, 8
TIED = ("key_norm",)
"""Scores that noise ranks: keys of a repeated sentence have equal norms, and their last digits decide."""
MARGIN = 1e-3
NATS = 0.02
"""A third of what lies between two policies that differ little."""
MIN_EFFECT = Effects(overall=0.05, cell=0.40)
_LISTED = 5


def gate(known: RowSet, results: Path, processes: int) -> int:
    """Make rows of the gated parts again and compare; 5 where something is worse, another, or undecided."""
    parts = [known.parts[name] for name in known.gated]
    shutil.rmtree(results, ignore_errors=True)
    rotating = known.folder / GATE
    if rotating.is_file():
        code = make_all(known, parts, results, None, processes, samples_of(load_table(rotating, warn=lambda _: None)))
    else:
        code = make_all(known, parts, results, HASHED, processes)
    if code:
        return code
    cells = read_parts(results)
    codes = []
    for part in (part for part in parts if part.name in cells):
        if part.book:
            codes.append(book_compared(known.folder / part.file, results, cells[part.name]))
        elif rotating.is_file():
            codes.append(compared(rotating, results, cells[part.name]))
        else:
            codes.append(compared(known.folder / f"{part.file}.parquet", results, cells[part.name], HASHED))
    return max(codes, default=0)


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


def compared(committed: Path, fresh: Path, cells: Collection[str] | None = None, first: int | None = None) -> int:
    """Print what differs, of these cells of `fresh` or all. Exit code 5 where it is more than noise, or undecided.

    `first`: compare so many samples of each of these cells, those that are committed; the gate may be undecided.
    """
    where = {} if first is None else {"sample": [str(sample) for sample in range(first)]}
    own = where if cells is None else where | {"cell": list(cells)}
    warn = lambda words: print(f"reference: {words}", file=sys.stderr)  # noqa: E731
    rows = load(committed, warn, where if first is None else own)
    baseline = Side("committed", rows, str(committed), describer(committed))
    known = {(row.cell, row.sample) for row in rows}
    rows = [row for row in load(fresh, warn, own) if first is None or (row.cell, row.sample) in known]
    current = Side("fresh", rows, str(fresh), describer(fresh))
    result = check(baseline, current, kept="note", min_effect=MIN_EFFECT, by=("policy",), allows=first is not None)
    print("\n".join(line for line in text(result).splitlines() if not line.strip().startswith("kept sets:")))
    more = differences(baseline.rows, current.rows)
    for line in more:
        print(f"  {line}")
    return 0 if result.is_accepted and not more else 5


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
    methods: dict[tuple[str | int | None, ...], list[bool]] = {}
    for row, other in hashed:
        if row.score not in TIED:
            methods.setdefault((row.policy, row.score), []).append(row.kept_sha256 != other.kept_sha256)
    broken = [
        method
        for method, changes in methods.items()
        if len(changes) >= ENOUGH and sum(changes) > MOVED_OF_METHOD * len(changes)
    ]
    if broken:
        problems.append(f"kept sets: of {len(broken)} methods more than three quarters differ: {_named(broken)}")
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
