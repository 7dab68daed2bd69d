"""Claims judged by rows: the paired difference of each, its test, the correction over its family, and a verdict.

Only the prompts that the file names are looked at. A claim whose rows are not all there has no verdict and no number,
so that nobody can stop where one is pleasant. p is of the sign-flip test for differences, and of one-sided tests
against the margin for equivalence and not worse; Holm's correction is over all claims of a family, whatever they test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.file import Cell, Claim, Claims
from kvbench.records import Row
from kvbench.report.compare.paired_rows import Match, pair
from kvbench.report.stats.equivalence import p_not_above, p_not_within
from kvbench.report.stats.intervals import estimates, interval
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import holm, sign_flip
from kvbench.report.stats.verdicts import INCONCLUSIVE, inconclusive

CONFIRMED, CONTRADICTED, WAITING, NOTHING = "confirmed", "contradicted", "not run", inconclusive("no room")
"""Verdicts on a claim, beside `inconclusive`. `contradicted`: a difference in the other direction is shown. `not run`:
rows are missing. `no room`: every task is at an end of the scale."""


@dataclass(frozen=True)
class OfTask:
    """One task of a claim: prompts that both sides have; once these are all, their means, and at which end they are."""

    task: str
    n: int
    mean_a: float | None
    mean_b: float | None
    left_out: str = ""


@dataclass(frozen=True)
class Verdict:
    """Verdict of the rows on one claim. Differences are b - a, in the unit of the values; None where there is none.

    rows, planned: answers of both sides that there are, and that the file asks for. beside: the means of what stands
    beside side a, over the same prompts. missing: for each side without rows, the condition at which none was left.
    """

    claim: Claim
    a: Cell
    b: Cell
    tasks: tuple[OfTask, ...]
    needed: int
    verdict: str
    rows: int
    planned: int
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
    beside: dict[str, float | None] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def check(answers: Answers) -> list[Verdict]:
    """Return the verdicts of all claims.

    Raises UserError for a side that has several rows for one prompt: its conditions must name one cell of each task.
    """
    claims = answers.claims
    measured = [_measured(claim, answers) for claim in claims.claims]
    corrected: dict[str, float] = {}
    for family in claims.families:
        # a claim without a p keeps its place, so that what is still to come cannot loosen the correction
        members = [each for each in measured if each.claim.family == family]
        p = holm([1.0 if each.p is None else each.p for each in members])
        corrected |= {each.claim.name: value for each, value in zip(members, p, strict=True)}
    return [_judged(each, corrected[each.claim.name], claims.alpha) for each in measured]


def _measured(claim: Claim, answers: Answers) -> Verdict:
    """Measure a claim; there is no p where rows are missing or no task has room."""
    claims, family = answers.claims, answers.claims.families[claim.family]
    needed, names = family.samples, family.tasks
    cell_a, cell_b = (claims.cell(claim.family, side) for side in (claim.a, claim.b))
    a, b = answers.of(cell_a), answers.of(cell_b)
    rows = sum(row.value is not None for cell in (cell_a, cell_b) for row in answers.rows(cell))
    verdict = Verdict(claim, cell_a, cell_b, (), needed, WAITING, rows, 2 * needed * len(names))
    if isinstance(a, str) or isinstance(b, str):
        missing = tuple(dict.fromkeys(side for side in (a, b) if isinstance(side, str)))
        return replace(verdict, tasks=tuple(OfTask(name, 0, None, None) for name in names), missing=missing)
    matches = pair(a, b).matches
    of_task = {name: _joined([match for match in matches if match.key.get("task") == name]) for name in names}
    tasks = tuple(_of_task(claims, name, needed, rows) for name, rows in of_task.items())
    verdict = replace(verdict, tasks=tasks)
    if any(task.n < needed for task in tasks):
        return verdict
    with_room = [task.task for task in tasks if not task.left_out]
    if not with_room:
        return replace(verdict, verdict=NOTHING)
    paired = Paired.of([both for name in with_room for both in of_task[name]])
    beside = claims.cells_beside(verdict.a)
    return replace(
        verdict,
        verdict=INCONCLUSIVE,
        rate=paired.rate,
        b_is_better=bool(paired.gain().difference.mean() > 0),
        **estimates(paired, interval(paired)),
        p=_p(claim, paired, claims.alpha / len(claims.claims)),
        beside={name: _mean(answers.rows(cell), with_room, needed) for name, cell in beside.items()},
    )


def _mean(rows: Sequence[Row], tasks: Sequence[str], needed: int) -> float | None:
    """Return the mean over all prompts of these tasks; None while some are missing."""
    values = [row.value for row in rows if row.task in tasks and row.value is not None]
    return sum(values) / len(values) if len(values) == needed * len(tasks) else None


def _joined(matches: Sequence[Match]) -> list[tuple[Row, Row]]:
    return [pair for match in matches for pair in match.rows]


def _of_task(claims: Claims, name: str, needed: int, rows: Sequence[tuple[Row, Row]]) -> OfTask:
    """Return the means of a task, and whether both sides are at one end of the scale; a perplexity has no ends."""
    if len(rows) < needed:
        return OfTask(name, len(rows), None, None)
    paired = Paired.of(rows)
    a, b = float(paired.a.mean()), float(paired.b.mean())
    end = ""
    if paired.rate:
        end = "floor" if max(a, b) < claims.floor / 100 else "ceiling" if min(a, b) > claims.ceiling / 100 else ""
    return OfTask(name, len(rows), a, b, end)


def _p(claim: Claim, paired: Paired, finest: float) -> float:
    """Return the p value of the test of a claim."""
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
    verdict = INCONCLUSIVE
    if p_holm <= alpha:
        verdict = CONFIRMED
        if measured.claim.expects not in (None, "either"):
            is_expected = measured.b_is_better == (measured.claim.expects == "b better")
            verdict = CONFIRMED if is_expected else CONTRADICTED
    return replace(measured, p_holm=p_holm, verdict=verdict)
