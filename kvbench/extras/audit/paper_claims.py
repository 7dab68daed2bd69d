"""Claims of papers as data, `results/papers/claims.yaml`, and the verdict of the printed numbers on each.

A claim names its lines (`where`), both sides (`a`, `b`: conditions on columns) and what is claimed of them, its kind:

mean      b is above a on average over the lines
each      the same within every group of lines that share the columns `by`
every     b is above a in every group of `by`, by its printed mean alone; with `by: all` in every line
best      b is above every other method of the same place, on average within each group of `by`
more      the mean difference is larger in `where` than in `than`; with `lead: true` of b to the best other method
factor    b is more than `times` a, on average
wins      b wins more tasks than a: the sign test, all budgets of a task summed
tasks     the test over tasks alone, for scores without bounds
given     of two numbers that stand in the claim itself
none      nothing to test: `because` says why

`lower: true`: less is better. `suppose: true`: n is not stated and the supposed one is taken. `tasks: false`: the test
over tasks does not count, because the lines were chosen after their numbers were seen. `otherwise: open`: numbers that
point the other way do not contradict the sentence, because it can be read in another unit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from kvbench.extras.audit.averages import Average, tasks_test
from kvbench.extras.audit.pair_tests import normal_p
from kvbench.extras.audit.pairs import LEVELS, Level, Pair
from kvbench.extras.audit.printed import FULL, KEYS, Condition, LinePair, PrintedLine, line_pairs, printed_lines
from kvbench.extras.audit.scores import scores_of
from kvbench.extras.audit.verdicts import Judged, Verdict, judged, verdict, verdict_of_all
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.settings_file import LOADER

Kind = Literal["mean", "each", "every", "best", "more", "factor", "wins", "tasks", "given", "none"]
Values = dict[str, str | list[str]]


@dataclass(frozen=True)
class Given:
    """Two numbers in 0..100 on the same n prompts of each task, for claims on tables that are not in the files.

    error: how far a number that was read off a picture may be from the one that was drawn.
    """

    a: float
    b: float
    n: int
    decimals: int = 1
    scores: str = "binary"
    tasks: int = 1
    error: float = 0.0

    @property
    def pair(self) -> Pair:
        """Both as means in 0..1."""
        scores = scores_of(self.scores)
        half = max(0.005 * 10.0**-self.decimals, self.error / 100)
        return Pair(self.a / 100, self.b / 100, self.n, half, scores.parts, scores.factor, tasks=self.tasks)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. at: where the paper makes it. says: what it says, in our words. For the rest see the module."""

    id: str
    paper: str
    at: str
    says: str
    kind: Kind
    where: Values = field(default_factory=dict)
    than: Values = field(default_factory=dict)
    a: Values = field(default_factory=dict)
    b: Values = field(default_factory=dict)
    by: list[str] | Literal["all"] = field(default_factory=list)
    without: Values = field(default_factory=dict)
    times: float = 1.0
    lower: bool = False
    lead: bool = False
    suppose: bool = False
    tasks: bool = True
    given: Given | None = None
    because: str = ""
    otherwise: Literal["false", "inconclusive"] = "false"


@dataclass(frozen=True)
class Audited:
    """A claim with its verdict. p: at each level, None where it cannot be computed. shows: what the numbers show, in
    words. decisive: what Holm's correction takes; None where nothing was tested.
    """

    claim: Claim
    verdict: Verdict
    shows: str
    p: dict[Level, float] | None = None
    tasks_p: float | None = None
    decisive: float | None = None
    need: float | None = None


def claims_of(folder: Path) -> list[Claim]:
    """Return all claims, in the file's order. Raises UserError, naming the claim, for a field that does not fit."""
    adapter = TypeAdapter(Claim)
    entries = yaml.load((folder / "claims.yaml").read_text("utf-8"), LOADER)
    return [_claim(entry, adapter) for entry in entries]


def _claim(entry: dict[str, Any], adapter: TypeAdapter[Claim]) -> Claim:
    try:
        return adapter.validate_python(entry)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"claim {entry.get('id', '?')}: {place}: {first['msg']}") from None


@cache
def _lines(paper: str, folder: Path) -> tuple[PrintedLine, ...]:
    return tuple(printed_lines(paper, folder))


def audited(claim: Claim, folder: Path) -> Audited:
    """Return the verdict of the printed numbers on a claim. Raises UserError if no line fits it."""
    return _AUDITS[claim.kind](claim, folder)


def _lines_of(claim: Claim, folder: Path, where: Condition) -> list[PrintedLine]:
    lines = (line for line in _lines(claim.paper, folder) if line.is_of(where))
    return [line for line in lines if not claim.without or not line.is_of(claim.without)]


def _pairs(claim: Claim, folder: Path, where: Condition) -> list[LinePair]:
    pairs = line_pairs(_lines_of(claim, folder, where), claim.a, claim.b)
    if not pairs:
        raise UserError(f"claim {claim.id}: no two lines differ as it says")
    return pairs


def _numbers(claim: Claim, pairs: Sequence[LinePair]) -> list[Pair]:
    """Return the pairs as means. Raises UserError if the n of one is not known."""
    numbers = [pair.pair(claim.suppose) for pair in pairs]
    if any(number is None for number in numbers):
        raise UserError(f"claim {claim.id}: no n is known of some lines; suppose: true takes the supposed one")
    return [number for number in numbers if number is not None]


def _groups(claim: Claim, pairs: Sequence[LinePair]) -> dict[tuple[str, ...], list[LinePair]]:
    keys = (*KEYS, "protocol") if claim.by == "all" else claim.by
    return grouped(pairs, lambda pair: tuple(pair.b[key] for key in keys))


def _judged(claim: Claim, pairs: Sequence[LinePair]) -> Judged:
    return judged(_numbers(claim, pairs), None if claim.tasks else False)


def _mean(claim: Claim, folder: Path) -> Audited:
    return _of_one(claim, _judged(claim, _pairs(claim, folder, claim.where)))


def _of_one(claim: Claim, result: Judged) -> Audited:
    """Return a claim about one mean difference: false if it points the other way."""
    change, tasks = 100 * result.average.difference, result.tasks
    shows = f"{change:+.2f} points"
    if tasks is not None:
        shows += f" ({tasks.up} tasks up, {tasks.down} down)"
    p_tasks = None if tasks is None else tasks.p
    need = result.average.times_needed("any")
    if change < 0:
        return Audited(claim, Verdict.FALSE, shows, result.p, p_tasks, None, need)
    return Audited(claim, result.verdict, shows, result.p, p_tasks, result.decisive, need)


def _each(claim: Claim, folder: Path) -> Audited:
    groups = _groups(claim, _pairs(claim, folder, claim.where)).values()
    return _of_all(claim, [_judged(claim, members) for members in groups])


def _of_all(claim: Claim, parts: Sequence[Judged]) -> Audited:
    """Return a claim that several mean differences hold: false if one points the other way, else as sure as the
    least.
    """
    changes = [100 * part.average.difference for part in parts]
    shows = f"{min(changes):+.2f} to {max(changes):+.2f} points in {len(parts)} parts"
    p: dict[Level, float] = {level: max(part.p[level] for part in parts) for level in LEVELS}
    with_tasks = [part.tasks.p for part in parts if part.tasks is not None]
    tasks = max(with_tasks) if with_tasks else None
    needs = [part.average.times_needed("any") for part in parts]
    need = None if None in needs else max(need for need in needs if need is not None)
    if min(changes) < 0:
        return Audited(claim, Verdict.FALSE, shows, p, tasks, None, need)
    return Audited(claim, verdict_of_all(parts), shows, p, tasks, max(part.decisive for part in parts), need)


def _every(claim: Claim, folder: Path) -> Audited:
    """Return counts by printed means alone; needs no n unless none is down."""
    groups = _groups(claim, _pairs(claim, folder, claim.where))
    sign = -1 if claim.lower else 1
    changes = [round(sign * fmean(pair.printed for pair in members), 9) for members in groups.values()]
    down, level = sum(change < 0 for change in changes), sum(change == 0 for change in changes)
    shows = f"{down} of {len(changes)} down" + (f", {level} level" if level else "")
    if down or level:
        return Audited(claim, Verdict.FALSE, shows)
    return replace(_of_all(claim, [_judged(claim, members) for members in groups.values()]), shows=shows)


def _best(claim: Claim, folder: Path) -> Audited:
    parts = [_judged(claim, pairs) for pairs in _leads(claim, folder, claim.where).values()]
    return _of_one(claim, parts[0]) if len(parts) == 1 else _of_all(claim, parts)


def _leads(claim: Claim, folder: Path, where: Condition) -> dict[tuple[str, ...], list[LinePair]]:
    """Return the claimed method with the best other one of each group, by its mean over the group."""
    lines = [line for line in _lines_of(claim, folder, where) if line["policy"] != FULL]
    leads = {}
    for group, members in grouped(lines, lambda line: tuple(line[key] for key in claim.by)).items():
        methods = grouped(members, lambda line: (line["policy"], line["score"]))
        claimed = [name for name, own in methods.items() if own[0].is_of(claim.b)]
        if not claimed:  # its line is a copy of another
            continue
        if len(claimed) > 1:
            raise UserError(f"claim {claim.id}: {len(claimed)} methods are the claimed one, not 1")
        others = {name: own for name, own in methods.items() if name not in claimed}
        runner_up = max(others, key=lambda name: fmean(line.value for line in others[name]))
        places = {_place(line): line for line in others[runner_up]}
        own = methods[claimed[0]]
        leads[group] = [LinePair(places[_place(line)], line) for line in own if _place(line) in places]
    if not leads:
        raise UserError(f"claim {claim.id}: no line fits it")
    return leads


def _place(line: PrintedLine) -> tuple[str, ...]:
    return tuple(line[key] for key in KEYS if key not in ("policy", "score"))


def _more(claim: Claim, folder: Path) -> Audited:
    """Return the difference of two mean differences, in each group of `by`; errors over shared prompts add, others do
    not.
    """
    if claim.lead:
        both = [_leads(claim, folder, where) for where in (claim.where, claim.than)]
    else:
        both = [_groups(claim, _pairs(claim, folder, where)) for where in (claim.where, claim.than)]
    if both[0].keys() != both[1].keys():
        raise UserError(f"claim {claim.id}: where and than have different groups by {claim.by}")
    parts, shows = [], []
    for group in both[0]:
        first, second = (Average(tuple(_numbers(claim, groups[group]))) for groups in both)
        change = first.difference - second.difference
        is_shared = {pair.prompts for pair in first.pairs} & {pair.prompts for pair in second.pairs}
        p: dict[Level, float] = {}
        for level in LEVELS:
            errors = first.standard_error(level), second.standard_error(level)
            p[level] = normal_p(max(0.0, change), math.fsum(errors) if is_shared else math.hypot(*errors))
        parts.append((change, p))
        shows.append(f"{100 * first.difference:+.2f} against {100 * second.difference:+.2f}")
    p = {level: max(part[level] for _, part in parts) for level in LEVELS}
    text = f"{', '.join(shows)} points"
    if any(change < 0 for change, _ in parts) and claim.otherwise == "false":
        return Audited(claim, Verdict.FALSE, text, p)
    return Audited(claim, verdict(p["any"], p["best"]), text, p, None, p["any"])


def _factor(claim: Claim, folder: Path) -> Audited:
    """Return whether the mean of b - times a is above zero in each group of `by`."""
    parts, shows = [], []
    for members in _groups(claim, _pairs(claim, folder, claim.where)).values():
        pairs = _numbers(claim, members)
        average = Average(tuple(pairs))
        surplus = max(0.0, average.b - claim.times * average.a)
        parts.append({level: normal_p(surplus, _factor_error(pairs, claim.times, level)) for level in LEVELS})
        shows.append(f"{average.b / average.a:.2f}")
    p: dict[Level, float] = {level: max(part[level] for part in parts) for level in LEVELS}
    text = f"{', '.join(shows)} times, against {claim.times:g}"
    return Audited(claim, verdict(p["any"], p["best"]), text, p, None, p["any"])


def _factor_error(pairs: Sequence[Pair], times: float, level: Level) -> float:
    """Return the standard error of the mean of b - times a; errors over shared prompts add."""
    errors = [(pair.prompts, math.sqrt(_square(pair, times, level) / (pair.units * pair.tasks))) for pair in pairs]
    sets = grouped(errors, lambda error: error[0]).values()
    return math.hypot(*(math.fsum(value for _, value in members) for members in sets)) / len(pairs)


def _square(pair: Pair, times: float, level: Level) -> float:
    """Return the mean square of b - r a of a prompt; of scores in 0..1 it is at most q + r^2 p - 2 r max(0, p + q -
    1).
    """
    p, q = pair.a, pair.b
    if level == "any":
        return q + times**2 * p - 2 * times * max(0.0, p + q - 1)
    factor, rho = {"rho0": (1.0, 0.0), "mid": (pair.factor, pair.rho), "best": (pair.factor, 0.99)}[level]
    v, w = p * (1 - p), q * (1 - q)
    return factor * (w + times**2 * v - 2 * rho * times * math.sqrt(v * w)) + (q - times * p) ** 2


def _wins(claim: Claim, folder: Path) -> Audited:
    pairs = _pairs(claim, folder, claim.where)
    result = tasks_test([(pair.b.reads, pair.printed) for pair in pairs])
    shows = f"{result.up} tasks won, {result.down} lost"
    if result.up < result.down:
        return Audited(claim, Verdict.FALSE, shows)
    return Audited(claim, verdict(result.sign_p, result.sign_p), shows, None, result.sign_p, result.sign_p)


def _given(claim: Claim, folder: Path) -> Audited:
    if claim.given is None:
        raise UserError(f"claim {claim.id}: kind given needs the numbers: given: {{a: 1.0, b: 2.0, n: 100}}")
    return _of_one(claim, judged([claim.given.pair]))


def _none(claim: Claim, folder: Path) -> Audited:
    if not claim.because:
        raise UserError(f"claim {claim.id}: kind none needs because: why there is nothing to test")
    return Audited(claim, Verdict.NOT_AUDITABLE, claim.because)


def _of_tasks_alone(claim: Claim, folder: Path) -> Audited:
    """Scores without bounds: the test over tasks alone."""
    pairs = _pairs(claim, folder, claim.where)
    sign = -1 if claim.lower else 1
    result = tasks_test([(pair.b.reads, sign * pair.printed) for pair in pairs])
    shows = f"{result.up} tasks better, {result.down} worse"
    return Audited(claim, verdict(result.p, result.p), shows, None, result.p, result.p)


_AUDITS = {
    "mean": _mean,
    "each": _each,
    "every": _every,
    "best": _best,
    "more": _more,
    "factor": _factor,
    "wins": _wins,
    "tasks": _of_tasks_alone,
    "given": _given,
    "none": _none,
}
