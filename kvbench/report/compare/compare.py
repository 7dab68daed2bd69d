"""Two sides of paired rows, difference by difference: how large, how sure, and in words.

The difference is B - A. Every line is one comparison of `kvbench.report.compare.paired_rows` (a task at a length, and a
cell where both sides share several); where there are several, all of their pairs together are one more. p is that of
the sign-flip test, and Holm's correction is over all lines: its family is what is shown.

Answers that numeric noise could flip.

Greedy decoding takes the best token. Where the two best logits are closer than the arithmetic can tell apart, another
batch size, kernel or processor may take the other one, and the answer changes with it. ``top2_margin`` of a row is the
smallest gap between the two best logits over its answer. The step of a dtype is the distance between neighbouring
numbers from 16 to 32, where the best logits of language models commonly lie: 2^(4 - p) with p explicit bits of the
significand.

Which cells of a table differ from a baseline cell by more than chance: the marks beside its means.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvbench.records import Row
from kvbench.report.compare.paired_rows import Match, Pairing, Side, Unpaired, pair, shown
from kvbench.report.selection import differences
from kvbench.report.stats.corrections import holm
from kvbench.report.stats.intervals import FEW, RESAMPLES, interval
from kvbench.report.stats.paired import Paired, paired
from kvbench.report.stats.paired_tests import can_refuse, detectable, mcnemar, sign_flip
from kvbench.support.errors import UserError

ALPHA = 0.05
RELEVANT = 0.1
BETTER, WORSE, NO_EVIDENCE, TOO_FEW = "better", "worse", "no evidence", "too few samples"
_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One line. Means, limits and ``detectable`` in the metric's own unit (rates 0..1); missing is None.

    ``interval``: how its limits were found. ``only_a only_b mcnemar``: 0/1 answers without shared contexts only.
    ``noisy``: pairs in which numeric noise could flip an answer, None where no margin or dtype is known. ``unpaired``:
    rows that are in no pair.
    """

    key: Mapping[str, Any]
    metric: str | None
    rate: bool
    n: int
    clusters: int
    mean_a: float | None = None
    mean_b: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""
    p: float | None = None
    p_method: str = ""
    p_holm: float | None = None
    only_a: int | None = None
    only_b: int | None = None
    mcnemar: float | None = None
    detectable: float | None = None
    noisy: int | None = None
    verdict: str = TOO_FEW
    unpaired: tuple[Unpaired, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All lines of two sides, the names of the sides, and what a reader has to know beside the numbers."""

    a: str
    b: str
    compared: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    lines: tuple[Difference, ...]
    overall: Difference | None
    alpha: float
    relevant: float
    notes: tuple[str, ...]


def compare(
    a: Side, b: Side, alpha: float = ALPHA, relevant: float = RELEVANT, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two sides, each of which has rows.

    ``alpha``: the chance of one false "better" or "worse" among all lines. ``relevant``: the difference of rates that
    matters; a line that could not have seen it is told apart from one that could and did not.

    Raises ValueError as `kvbench.report.compare.paired_rows.pair` does.
    """
    found = pair(a, b)
    lines = [_line(match, a, b, resamples) for match in found.matches]
    notes = _notes(found, a, b)
    overall, problem = _overall(found, a, b, resamples)
    notes += problem
    family = [line for line in (*lines, *([overall] if overall else [])) if line[1] is not None]
    judged = _judged(family, alpha, relevant)
    shown = [judged.get(id(line), line[0]) for line in lines]
    return Comparison(
        a=a.name,
        b=b.name,
        compared=found.compared,
        lines=tuple(shown),
        overall=judged[id(overall)] if overall else None,
        alpha=alpha,
        relevant=relevant,
        notes=tuple(notes),
    )


_Line = tuple[Difference, Paired | None]


def _line(match: Match, a: Side, b: Side, resamples: int) -> _Line:
    if not match.pairs:
        metric = next((row.metric for pair in match.both for row in pair if row.metric), None)
        return Difference(key=match.key, metric=metric, rate=True, n=0, clusters=0, unpaired=match.unpaired), None
    pairs = paired(match.pairs)
    limits = interval(pairs, resamples)
    line = Difference(
        key=match.key,
        metric=match.pairs[0][0].metric,
        rate=pairs.rate,
        n=pairs.n,
        clusters=pairs.clusters,
        mean_a=float(pairs.a.mean()),
        mean_b=float(pairs.b.mean()),
        difference=float(pairs.difference.mean()),
        low=limits.low,
        high=limits.high,
        interval=limits.method,
        noisy=_noisy(match.pairs, a, b),
        unpaired=match.unpaired,
    )
    if pairs.binary and pairs.independent:
        only_a, only_b = int((pairs.difference < 0).sum()), int((pairs.difference > 0).sum())
        line = replace(line, only_a=only_a, only_b=only_b, mcnemar=mcnemar(only_a, only_b))
    return line, pairs


def _overall(found: Pairing, a: Side, b: Side, resamples: int) -> tuple[_Line | None, list[str]]:
    """All pairs as one line, where there are several lines and their values have a unit in common."""
    with_pairs = [match for match in found.matches if match.pairs]
    if len(with_pairs) < 2:
        return None, []
    pairs = tuple(pair for match in with_pairs for pair in match.pairs)
    metrics = sorted({pair[0].metric or "value" for pair in pairs})
    try:
        line, arrays = _line(Match({}, pairs, (), pairs), a, b, resamples)
    except ValueError as error:
        return None, [f"No overall line: {error}."]
    return (replace(line, metric=" ".join(metrics)), arrays), []


def _judged(family: Sequence[_Line], alpha: float, relevant: float) -> dict[int, Difference]:
    """The lines of a family with their tests and verdicts, by identity."""
    strictest = alpha / max(1, len(family))
    tests = [sign_flip(pairs.sums()[0], finest=strictest) for _, pairs in family if pairs is not None]
    corrected = holm([test.p for test in tests])
    judged = {}
    for entry, test, p_holm in zip(family, tests, corrected, strict=True):
        line, pairs = entry
        assert pairs is not None
        smallest = detectable(pairs, strictest)
        sees = smallest is not None and (not pairs.rate or smallest <= relevant)
        enough = pairs.clusters >= FEW and can_refuse(pairs.clusters, strictest) and sees
        if p_holm <= alpha:
            verdict = BETTER if float(pairs.gain().difference.mean()) > 0 else WORSE
        else:
            verdict = NO_EVIDENCE if enough else TOO_FEW
        judged[id(entry)] = replace(
            line, p=test.p, p_method=test.method, p_holm=p_holm, detectable=smallest, verdict=verdict
        )
    return judged


def _noisy(pairs: Sequence[tuple[Row, Row]], a: Side, b: Side) -> int | None:
    describe_a, describe_b = _remembered(a), _remembered(b)
    known = [(could_flip(row, describe_a(row.cell)), could_flip(other, describe_b(other.cell))) for row, other in pairs]
    if all(answer is None for pair in known for answer in pair):
        return None
    return sum(any(pair) for pair in known)


def _remembered(side: Side) -> Callable[[str], Mapping[str, Any] | None]:
    known: dict[str, Mapping[str, Any] | None] = {}

    def describe(cell: str) -> Mapping[str, Any] | None:
        if cell not in known:
            known[cell] = side.describe(cell)
        return known[cell]

    return describe


def _notes(found: Pairing, a: Side, b: Side) -> list[str]:
    """What makes two sides differ in more than what is compared."""
    notes = []
    both = [pair for match in found.matches for pair in match.pairs]
    other = sum(
        row.prompt_sha256 != partner.prompt_sha256
        for row, partner in both
        if None not in (row.prompt_sha256, partner.prompt_sha256)
    )
    if other:
        notes.append(f"{other} of {len(both)} pairs were asked with different prompts: more than the cells differs.")
    return notes + settings_that_differ(found, a, b, "A", "B")


def settings_that_differ(found: Pairing, a: Side, b: Side, name_a: str, name_b: str) -> list[str]:
    """One line that names the settings in which the cells of a pair differ, beside those that are compared; or none."""
    describe_a, describe_b = _remembered(a), _remembered(b)
    names: set[str] = set()
    for cells in {(row.cell, partner.cell) for match in found.matches for row, partner in match.pairs}:
        described = [describe_a(cells[0]), describe_b(cells[1])]
        if None not in described and cells[0] != cells[1]:
            names |= differences(described)
    known = {*found.compared, *(f"{group}.name" for group in found.compared)}
    plain = sorted(names - known)
    more = f" and {len(plain) - _LISTED} more" if len(plain) > _LISTED else ""
    return [f"Settings that differ between {name_a} and {name_b}: {', '.join(plain[:_LISTED])}{more}."] * bool(plain)


def as_tree(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain values for JSON."""

    def line(difference: Difference) -> dict[str, Any]:
        fields = {name: getattr(difference, name) for name in Difference.__dataclass_fields__ if name != "key"}
        fields["unpaired"] = [{"sample": x.sample, "side": x.side, "reason": x.reason} for x in difference.unpaired]
        return dict(difference.key) | fields

    return {
        "a": comparison.a,
        "b": comparison.b,
        "compared": {name: {"a": list(a), "b": list(b)} for name, (a, b) in comparison.compared.items()},
        "alpha": comparison.alpha,
        "relevant": comparison.relevant,
        "lines": [line(difference) for difference in comparison.lines],
        "overall": line(comparison.overall) if comparison.overall else None,
        "notes": list(comparison.notes),
    }


STEPS: Mapping[str, float] = {
    "bfloat16": 2.0 ** (4 - 7),
    "float16": 2.0 ** (4 - 10),
    "float32": 2.0 ** (4 - 23),
    "float64": 2.0 ** (4 - 52),
}


def could_flip(row: Row, description: Mapping[str, Any] | None) -> bool | None:
    """Whether the margin of an answer is below the step of its cell's dtype; None where margin or dtype is unknown."""
    model = (description or {}).get("model")
    step = STEPS.get(str(model.get("dtype"))) if isinstance(model, Mapping) else None
    return None if step is None or row.top2_margin is None else row.top2_margin < step


_SAME = ("model", "task", "context_length", "seed")


@dataclass(frozen=True)
class Mark:
    """One cell against its baseline: mean difference over n common samples, and whether it survives Holm.

    ``better``: whether the difference is to the good; None where there is none.
    """

    baseline: str
    n: int
    difference: float
    p_holm: float
    survives: bool
    better: bool | None


def survivors(rows: Sequence[Row], is_baseline: Callable[[Row], bool], alpha: float = ALPHA) -> dict[str, Mark]:
    """Marks of all cells, by cell, of which a baseline answered the same questions.

    The baseline of a cell is the one among the cells ``is_baseline`` names that has its model, task, context length and
    seed; where several have, the one with its budget. The family of the correction is all marks of one call.

    Raises ValueError where a cell has two baselines.
    """
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, []).append(row)
    firsts = {cell: found[0] for cell, found in cells.items()}
    bases: dict[tuple, list[str]] = {}
    for cell, first in firsts.items():
        if is_baseline(first):
            bases.setdefault(_question(first), []).append(cell)
    tested: dict[str, tuple[str, Paired]] = {}
    for cell, first in firsts.items():
        base = None if is_baseline(first) else _base(first, bases.get(_question(first), []), firsts)
        if base is not None:
            known = {row.sample: row for row in cells[base] if row.value is not None and row.metric == first.metric}
            common = sorted((row for row in cells[cell] if row.value is not None), key=lambda row: row.sample)
            pairs = [(known[row.sample], row) for row in common if row.sample in known]
            if pairs:
                tested[cell] = (base, paired(pairs))
    finest = alpha / max(1, len(tested))
    corrected = holm([sign_flip(pairs.sums()[0], finest=finest).p for _, pairs in tested.values()])
    marks = {}
    for (cell, (base, pairs)), p_holm in zip(tested.items(), corrected, strict=True):
        gain = float(pairs.gain().difference.mean())
        better = gain > 0 if gain else None
        marks[cell] = Mark(base, pairs.n, float(pairs.difference.mean()), p_holm, p_holm <= alpha, better)
    return marks


def _question(row: Row) -> tuple:
    return tuple(getattr(row, name) for name in _SAME)


def _base(row: Row, candidates: Sequence[str], firsts: dict[str, Row]) -> str | None:
    same = [cell for cell in candidates if firsts[cell].budget == row.budget] if len(candidates) > 1 else candidates
    if len(same) > 1:
        told = [_told(firsts[cell]) for cell in sorted(same)]
        raise UserError(
            f"cell {row.cell} ({row.task} {_told(row)}) has "
            f"{len(same)} baselines: {' and '.join(told)}; name one of them, like "
            f"policy={shown(firsts[same[0]].policy)},score={shown(firsts[same[0]].score)}"
        )
    return same[0] if same else None


def _told(row: Row) -> str:
    return " ".join(map(shown, (row.policy, row.score, row.budget)))
