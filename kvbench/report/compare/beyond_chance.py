"""Each cell of a table against its baseline: which differences survive Holm's correction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from kvbench.records import Row
from kvbench.records.rows import Describe
from kvbench.report.experiments import ASKED, Experiments
from kvbench.report.selection import as_typed
from kvbench.report.stats.paired import Paired
from kvbench.report.stats.paired_tests import holm, sign_flip
from kvbench.report.stats.verdicts import ALPHA
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped


@dataclass(frozen=True)
class Mark:
    """One cell against its baseline over their common samples: Holm's p, whether it survives, and whether it gains.

    won, lost: samples on which the cell is better, and worse.
    """

    baseline: str
    p_holm: float
    survives: bool
    better: bool
    won: int
    lost: int


def survivors(
    rows: Sequence[Row],
    is_baseline: Callable[[Row], bool],
    alpha: float = ALPHA,
    describe: Describe = lambda cell: None,
) -> dict[str, Mark]:
    """Return marks by cell, for all cells with a baseline that answered the same questions.

    The baseline of a cell is the cell accepted by ``is_baseline`` with its model, task, context length and seed that
    differs in nothing but its method; among several, the one with its budget, and then the one with the nearest
    schedule. The family of the correction is all marks of one call.

    Raises ValueError if a cell has two baselines.
    """
    same = attrgetter("model", "task", "context_length", "seed")
    cells = grouped(rows, attrgetter("cell"))
    firsts = {cell: members[0] for cell, members in cells.items()}
    baselines = grouped((cell for cell in cells if is_baseline(firsts[cell])), lambda cell: same(firsts[cell]))
    tested: dict[str, tuple[str, Paired]] = {}
    asked = Experiments((), describe, ASKED)
    for cell, first in firsts.items():
        candidates = asked.partners(cell, baselines.get(same(first), []))
        base = None if is_baseline(first) else _base(first, candidates, firsts)
        if base is not None and (paired_rows := _common(cells[base], cells[cell])):
            tested[cell] = (base, Paired.of(paired_rows))
    finest = alpha / max(1, len(tested))
    corrected = holm([sign_flip(paired.sums()[0], finest=finest).p for _, paired in tested.values()])
    marks = {}
    for (cell, (base, paired)), p_holm in zip(tested.items(), corrected, strict=True):
        gains = paired.gain().difference
        won, lost = int((gains > 0).sum()), int((gains < 0).sum())
        marks[cell] = Mark(base, p_holm, p_holm <= alpha, bool(gains.mean() > 0), won, lost)
    return marks


def _common(base: Sequence[Row], rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the rows of the same samples that both have a value, by sample."""
    by_sample = {row.sample: row for row in base if row.value is not None and row.metric == rows[0].metric}
    valued = sorted((row for row in rows if row.value is not None), key=lambda row: row.sample)
    return [(by_sample[row.sample], row) for row in valued if row.sample in by_sample]


def _base(row: Row, candidates: Sequence[str], firsts: Mapping[str, Row]) -> str | None:
    is_by_budget = len({firsts[cell].budget for cell in candidates}) > 1
    baselines = [cell for cell in candidates if firsts[cell].budget == row.budget or not is_by_budget]
    if len(baselines) > 1:
        apart = {cell: _schedules_apart(row.schedule, firsts[cell].schedule) for cell in baselines}
        baselines = [cell for cell in baselines if apart[cell] == min(apart.values())]
    if len(baselines) > 1:
        name, *names = (
            " ".join(map(as_typed, (first.policy, first.score, first.budget)))
            for first in (row, *(firsts[cell] for cell in sorted(baselines)))
        )
        raise UserError(
            f"cell {row.cell} ({row.task} {name}) has {len(baselines)} baselines: {' and '.join(names)}; name one of "
            f"them, such as policy={as_typed(firsts[baselines[0]].policy)},score={as_typed(firsts[baselines[0]].score)}"
        )
    return baselines[0] if baselines else None


def _schedules_apart(a: str | None, b: str | None) -> tuple[bool, int]:
    """Say whether two schedules first evict at other moments, and how many of their other settings differ."""
    words_a, words_b = (a or "").split(), (b or "").split()
    return words_a[:1] != words_b[:1], len({*words_a[1:]} ^ {*words_b[1:]})
