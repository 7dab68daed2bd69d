"""Whether cells lost accuracy: a test by chance and an alarm by size, and the smallest loss that each test could find.

The unit is the prompt: questions that share a context are one, and so are the answers of all cells to one prompt
(`kvbench.report.stats.power` says how much they count). A cell, or a group of cells, is one test; all rates together
are one more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from kvbench.report.compare.paired_rows import Match
from kvbench.report.stats.intervals import interval, standard_error
from kvbench.report.stats.paired import TIMED, Paired
from kvbench.report.stats.paired_tests import regressions
from kvbench.report.stats.power import CORRELATION, POWER, effective_prompts, power, smallest_loss

ALL_CELLS = "all cells"


@dataclass(frozen=True)
class Effects:
    """Losses as shares, of all cells together and of one cell: of rates 0.2 is 20 points, of ``nll`` 0.2 nats, of any
    other metric 20 % of the baseline's mean.
    """

    overall: float
    cell: float


MIN_EFFECT = Effects(0.05, 0.20)
ALARM = Effects(0.20, 0.50)


@dataclass(frozen=True, kw_only=True)
class LossTest:
    """The test of one cell, a group of cells, or all of them.

    ``n prompts``: pairs of answers, and independent prompts among them. ``baseline current smallest min_effect alarm``
    in the metric's own unit; ``smallest``: the loss that is found four times in five, None where none is. ``power``:
    how often a loss of ``min_effect`` is found, of rates. ``low high``: the 95 % interval of current - baseline. ``p``
    is one-sided, ``threshold`` what it was compared with. ``lost``: the samples of a cell that became worse.
    """

    where: str
    n: int
    prompts: int
    rate: bool
    higher: bool
    baseline: float
    current: float
    low: float | None
    high: float | None
    p: float
    threshold: float
    is_worse: bool
    smallest: float | None
    power: float | None
    min_effect: float
    alarm: float
    lost: tuple[int, ...] = ()

    @property
    def loss(self) -> float:
        """By how much the current run is worse."""
        return (self.baseline - self.current) * (1 if self.higher else -1)

    @property
    def is_large(self) -> bool:
        """Whether the loss is an alarm by its size."""
        return self.loss > self.alarm * (1 + 1e-9)

    @property
    def is_undecided(self) -> bool:
        """Whether nothing was found that could not have been missed."""
        is_found = self.is_worse or self.is_large
        return not is_found and (self.smallest is None or self.smallest > self.min_effect * (1 + 1e-9))

    @property
    def figures(self) -> tuple[str, str, str]:
        """Baseline, current run and change as text, rates in points."""
        change = self.number(self.current - self.baseline)
        return self.number(self.baseline), self.number(self.current), change if change[0] == "-" else f"+{change}"

    def number(self, value: float) -> str:
        """Return a mean or loss as text, rates in points."""
        return f"{100 * value:.1f}" if self.rate else f"{value:.4f}"

    def amount(self, value: float) -> str:
        """Return a loss as text with its unit."""
        return f"{100 * value:.3g} points" if self.rate else f"{value:.3g}"


def loss_tests(
    cells: Sequence[tuple[str, Sequence[Match]]], alpha: float, min_effect: Effects, alarm: Effects
) -> tuple[list[LossTest], LossTest | None]:
    """Return one test of each cell, or group of cells, with its name, and of all rates of several together; none of
    seconds.

    A single test of rates tests all rates, and is held to the effects of all. Raises UserError for a group whose
    metrics have different units.
    """
    tested = [(where, [match for match in matches if is_tested(match)]) for where, matches in cells]
    tested = [(where, matches) for where, matches in tested if matches]
    pairs = [[pair for match in matches for pair in match.rows] for _, matches in tested]
    paired = [Paired.of(rows) for rows in pairs]
    rates = [rows for rows, values in zip(pairs, paired, strict=True) if values.rate]
    together = Paired.of([pair for rows in rates for pair in rows]) if len(rates) > 1 else None
    results = regressions(paired, together, alpha)
    noise = _noise(paired)
    tests = []
    for (where, matches), rows, values, p, is_worse in zip(
        tested, pairs, paired, results.cells, results.worse, strict=True
    ):
        losses = values.gain().difference < 0
        lost = tuple(row.sample for (row, _), is_loss in zip(rows, losses, strict=True) if is_loss)
        unit = 1.0 if values.rate or rows[0][0].metric == "nll" else abs(float(values.a.mean()))
        is_all = values.rate and len(rates) == 1
        tests.append(
            _test(
                where,
                values,
                (p, results.threshold, is_worse),
                max(noise, _noise([values])),
                correlation=1.0 if len(matches) == 1 else CORRELATION,
                min_effect=unit * (min_effect.overall if is_all else min_effect.cell),
                alarm=unit * (alarm.overall if is_all else alarm.cell),
                lost=lost if len(matches) == 1 else (),
            )
        )
    if together is None or results.pooled is None:
        return tests, None
    outcome = results.pooled, results.pooled_threshold, results.pooled_worse
    effects = {"min_effect": min_effect.overall, "alarm": alarm.overall}
    return tests, _test(ALL_CELLS, together, outcome, noise, correlation=CORRELATION, lost=(), **effects)


def large_losses(cells: Sequence[tuple[str, Match]], alpha: float, alarm: Effects) -> list[LossTest]:
    """Return the tests of cells of a group that lost several prompts and more than the alarm, which their group may
    hide.

    One lost answer of a cell with one prompt is not in it: noise can take that, and a group is of such cells.
    """
    tests, _ = loss_tests([(where, [match]) for where, match in cells], alpha, MIN_EFFECT, alarm)
    return [test for test in tests if test.is_large and test.prompts > 1 and len(test.lost) > 1]


def is_tested(match: Match) -> bool:
    """Return whether a cell has values of prompts: seconds belong to a run."""
    return bool(match.rows) and match.rows[0][0].metric != TIMED


def _test(
    where: str,
    paired: Paired,
    outcome: tuple[float, float, bool],
    noise: float,
    *,
    correlation: float,
    min_effect: float,
    alarm: float,
    lost: tuple[int, ...],
) -> LossTest:
    """Return the test. correlation: of the answers to one prompt, which one cell may lose at once."""
    p, threshold, is_worse = outcome
    smallest, share = None, None
    if 2.0**-paired.clusters <= threshold:
        sums, sizes = paired.sums()
        if paired.rate:
            prompts = int(effective_prompts(sizes, correlation) + 1e-9)
            smallest, share = smallest_loss(prompts, threshold, noise), power(prompts, threshold, noise, min_effect)
        else:
            smallest = float(ndtri(1 - threshold) + ndtri(POWER)) * float(standard_error(sums, sizes))
    limits = interval(paired)
    return LossTest(
        where=where,
        n=paired.n,
        prompts=paired.clusters,
        rate=paired.rate,
        higher=paired.higher,
        baseline=float(paired.a.mean()),
        current=float(paired.b.mean()),
        low=limits.low,
        high=limits.high,
        p=p,
        threshold=threshold,
        is_worse=is_worse,
        smallest=smallest,
        power=share,
        min_effect=min_effect,
        alarm=alarm,
        lost=lost,
    )


def _noise(cells: Sequence[Paired]) -> float:
    """Return the share of answers that chance turns each way: what all rates gained, or lost if that is less.

    A change of a graded answer counts by its square, as in a variance.
    """
    if not (rates := [paired for paired in cells if paired.rate]):
        return 0.0
    changes = np.concatenate([paired.difference for paired in rates])
    squares = [float((np.maximum(side, 0.0) ** 2).mean()) for side in (changes, -changes)]
    return round(min(squares), 4)
