"""What rows say of claims: the paired difference of each, its test, the correction over its family, and a verdict.

Only the prompts that the file names are looked at. A claim whose rows are not all there has no
verdict, so that nobody can stop where a number is pleasant. p is that of the sign-flip test for differences, and of
one-sided tests against the margin for equivalence and not worse; Holm's correction is over all claims of a family,
whatever they test.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbench.records import Row
from kvbench.report.claims.file import Claim, Claims
from kvbench.report.compare.paired_rows import Match, Side, pair
from kvbench.report.rows import describer, load_table, rows_of
from kvbench.report.selection import NothingSelected, select
from kvbench.report.stats.equivalence import p_not_above, p_not_within
from kvbench.report.stats.intervals import estimates, interval
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import holm, sign_flip
from kvbench.support.errors import UserError

CONFIRMED, CONTRADICTED, OPEN, WAITING, NOTHING = "confirmed", "contradicted", "open", "waiting", "no room"
"""Verdicts. `contradicted`: a difference in the other direction is shown. `no room`: every task is at an end."""


@dataclass(frozen=True)
class OfTask:
    """One task of a claim: prompts that both sides have, and the means of the sides; left_out: at which end it is."""

    task: str
    n: int
    mean_a: float | None
    mean_b: float | None
    left_out: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the rows say of one claim. Differences are b - a, in the unit of the values; None where there is none.

    missing: for each side without rows, the condition at which none was left.
    """

    claim: Claim
    tasks: tuple[OfTask, ...]
    needed: int
    verdict: str
    rate: bool = True
    b_is_better: bool = False
    n: int = 0
    clusters: int = 0
    mean_a: float | None = None
    mean_b: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    missing: tuple[str, ...] = ()


def check(claims: Claims, results: Any, warn: Callable[[str], None]) -> list[Verdict]:
    """The verdicts of all claims over the rows of a results folder or a Parquet file.

    Raises UserError for a side that has several rows for one prompt: its conditions must name one cell of each task.
    """
    table, describe = load_table(results, warn=warn), describer(results)

    def side(claim: Claim, name: str) -> Side | str:
        conditions = claims.where(claim, getattr(claim, name))
        try:
            rows = rows_of(select(table, conditions, describe, lambda text: None))
        except NothingSelected as error:
            return str(error)
        family = claims.family(claim)
        rows = [row for row in rows if family.first <= row.sample < family.first + family.samples]
        title = f"side {name} of claim {claim.name}"
        _check_one_cell(title, rows)
        return Side(title, rows, str(results), describe) if rows else "no row of these prompts"

    measured = [_measured(claims, claim, side(claim, "a"), side(claim, "b")) for claim in claims.claims]
    corrected: dict[str, float] = {}
    for family in claims.families:
        # a claim without a p keeps its place, so that what is still to come cannot loosen the correction
        members = [each for each in measured if each.claim.family == family]
        p = holm([1.0 if each.p is None else each.p for each in members])
        corrected |= {each.claim.name: value for each, value in zip(members, p, strict=True)}
    return [_judged(each, corrected[each.claim.name], claims.alpha) for each in measured]


def _check_one_cell(title: str, rows: Sequence[Row]) -> None:
    cells: dict[str, set[str]] = {}
    for row in rows:
        cells.setdefault(row.task, set()).add(row.cell)
    for task, found in cells.items():
        if len(found) > 1:
            budgets = sorted({row.budget for row in rows if row.task == task})
            raise UserError(
                f"{title} selects {len(found)} cells of {task}, with budgets {', '.join(budgets)}; add conditions that "
                "tell them apart, such as budget or a setting: kvbench report rows shows all"
            )


def _measured(claims: Claims, claim: Claim, a: Side | str, b: Side | str) -> Verdict:
    """Measure a claim; there is no p where rows are missing or no task has room. A side that is a text has no rows."""
    needed, names = claims.family(claim).samples, claims.family(claim).tasks
    if isinstance(a, str) or isinstance(b, str):
        missing = tuple(dict.fromkeys(side for side in (a, b) if isinstance(side, str)))
        return Verdict(claim, tuple(OfTask(name, 0, None, None) for name in names), needed, WAITING, missing=missing)
    matches = pair(a, b).matches
    of_task = {name: _joined([match for match in matches if match.key.get("task") == name]) for name in names}
    tasks = tuple(_of_task(claims, name, rows) for name, rows in of_task.items())
    if any(task.n < needed for task in tasks):
        return Verdict(claim, tasks, needed, WAITING)
    rows = [pair for task in tasks if not task.left_out for pair in of_task[task.task]]
    if not rows:
        return Verdict(claim, tasks, needed, NOTHING)
    paired = Paired.of(rows)
    return Verdict(
        claim,
        tasks,
        needed,
        OPEN,
        rate=paired.rate,
        b_is_better=bool(paired.gain().difference.mean() > 0),
        **estimates(paired, interval(paired)),
        p=_p(claim, paired, claims.alpha / len(claims.claims)),
    )


def _joined(matches: Sequence[Match]) -> list[tuple[Row, Row]]:
    return [pair for match in matches for pair in match.rows]


def _of_task(claims: Claims, name: str, rows: Sequence[tuple[Row, Row]]) -> OfTask:
    """The means of a task, and whether both sides are at one end of the scale; a perplexity has no ends."""
    if not rows:
        return OfTask(name, 0, None, None)
    paired = Paired.of(rows)
    a, b = float(paired.a.mean()), float(paired.b.mean())
    end = ""
    if paired.rate:
        end = "floor" if max(a, b) < claims.floor / 100 else "ceiling" if min(a, b) > claims.ceiling / 100 else ""
    return OfTask(name, len(rows), a, b, end)


def _p(claim: Claim, paired: Paired, finest: float) -> float:
    """The p of what a claim tests."""
    if claim.shows == "difference":
        return sign_flip(paired.sums()[0], finest=finest).p
    assert claim.margin is not None
    low, high = (
        (-claim.margin / 100, claim.margin / 100)
        if paired.rate
        else (math.log1p(-claim.margin / 100), math.log1p(claim.margin / 100))
    )
    if claim.shows == "equivalence":
        return p_not_within(paired, low, high)
    gain = paired.gain()
    return p_not_above(gain, low if paired.higher else -high)


def _judged(measured: Verdict, p_holm: float, alpha: float) -> Verdict:
    if measured.p is None:
        return measured
    verdict = OPEN
    if p_holm <= alpha:
        verdict = CONFIRMED
        if measured.claim.expects not in (None, "either"):
            is_expected = measured.b_is_better == (measured.claim.expects == "b better")
            verdict = CONFIRMED if is_expected else CONTRADICTED
    return replace(measured, p_holm=p_holm, verdict=verdict)
