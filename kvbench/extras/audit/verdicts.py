"""Verdicts that printed means allow: decided, depends, inconclusive, or contradicted by the printed numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvbench.extras.audit.averages import Average, TasksTest, tasks_test_of
from kvbench.extras.audit.pair_tests import ALPHA
from kvbench.extras.audit.pairs import LEVELS, Level, Pair
from kvbench.report.stats.verdicts import INCONCLUSIVE


class Verdict(StrEnum):
    """Verdict on a printed claim.

    decided: p <= 0.05 at any, or twice the smaller of that p and the p over tasks. depends: on how many prompts both
    sides lost and won. inconclusive: p > 0.05 at best too. false: the printed numbers contradict the sentence. not
    auditable: nothing bounds the differences, or n is not known.
    """

    DECIDED = "decided"
    DEPENDS = "depends"
    INCONCLUSIVE = INCONCLUSIVE
    FALSE = "false"
    NOT_AUDITABLE = "not auditable"


@dataclass(frozen=True)
class Judged:
    """A difference as judged. p: at each level. decisive: what is held against 0.05 and corrected for the number of
    comparisons: twice the smaller of p at any and over tasks, or the former if it is less.
    """

    average: Average
    p: dict[Level, float]
    tasks: TasksTest | None
    verdict: Verdict

    @property
    def decisive(self) -> float:
        return decisive(self.p["any"], None if self.tasks is None else self.tasks.p)


def judged(pairs: Sequence[Pair], over_tasks: bool | None = None) -> Judged:
    """Judge the average of differences. over_tasks: whether the test over tasks counts; by default over several sets.

    Not auditable: nothing bounds one of the differences, or rows of it are missing.
    """
    average = Average(tuple(pairs))
    with_tasks = average.sets > 1 if over_tasks is None else over_tasks
    tasks = tasks_test_of(pairs) if with_tasks else None
    if not average.judged:
        return Judged(average, {level: 1.0 for level in LEVELS}, tasks, Verdict.NOT_AUDITABLE)
    p: dict[Level, float] = {level: average.p_value(level) for level in LEVELS}
    return Judged(average, p, tasks, verdict(p["any"], p["best"], None if tasks is None else tasks.p))


def decisive(p_any: float, p_tasks: float | None = None) -> float:
    """p at any; with a p over tasks the smaller of that and twice the smaller of both, as two tests are two chances."""
    return p_any if p_tasks is None else min(p_any, 2 * min(p_any, p_tasks), 1.0)


def verdict(p_any: float, p_best: float, p_tasks: float | None = None) -> Verdict:
    """Return the verdict on a difference in the direction that was claimed."""
    if decisive(p_any, p_tasks) <= ALPHA:
        return Verdict.DECIDED
    return Verdict.INCONCLUSIVE if p_best > ALPHA else Verdict.DEPENDS


def verdict_of_all(parts: Sequence[Judged]) -> Verdict:
    """Return the verdict on a claim that all of these hold: by the largest p at each level."""
    if any(part.verdict is Verdict.NOT_AUDITABLE for part in parts):
        return Verdict.NOT_AUDITABLE
    if all(part.verdict is Verdict.DECIDED for part in parts):
        return Verdict.DECIDED
    return Verdict.INCONCLUSIVE if any(part.p["best"] > ALPHA for part in parts) else Verdict.DEPENDS
