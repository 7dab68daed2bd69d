"""Two sides of paired rows compared: the difference B - A, its interval and tests, and a verdict.

A line is one comparison of `kvbench.report.compare.paired_rows`. If there are several, all of their paired rows
together are one more. p is of the sign-flip test; Holm's correction is over all lines.

Numeric noise can flip an answer if the two best logits are closer than the arithmetic can tell apart. ``STEPS``: the
distance between neighbouring numbers of a dtype from 16 to 32, where the best logits of language models commonly lie,
2^(4 - p) with p explicit bits of the significand. It is held against the ``top2_margin`` of a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

from kvbench.records import Row
from kvbench.report.compare.paired_rows import SETTING, Match, Pairing, Side, Unpaired, counted, pair
from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.selection import as_typed, differences
from kvbench.report.stats.equivalence import p_not_within
from kvbench.report.stats.intervals import FEW, RESAMPLES, estimates, interval
from kvbench.report.stats.paired import Paired, common_scale
from kvbench.report.stats.paired_tests import detectable, holm, mcnemar, sign_flip
from kvbench.report.stats.verdicts import ALPHA, BETTER, EQUIVALENT, INCONCLUSIVE, TONES, WORSE
from kvbench.report.tables.observation_note import windows
from kvbench.support.errors import UserError
from kvbench.support.quantity import numbered, shortened

RELEVANT = 0.1
STEPS: Mapping[str, float] = {
    "bfloat16": 2.0 ** (4 - 7),
    "float16": 2.0 ** (4 - 10),
    "float32": 2.0 ** (4 - 23),
    "float64": 2.0 ** (4 - 52),
}
_LISTED = 4
_KEYS = (
    *("model", "task", "task_version", "context_length", "seed"),
    *("policy", "score", "budget", "variant", "layout", "schedule"),
)
_RARE = ("only A:B", "McNemar", "near-ties")
"""Columns that are left out where no line has anything to show in them."""
_PLAIN = ("model", "task", "policy", "score")  # columns whose values need no name
_NAMED = 20  # lines of what one side lacks that are named
_REASONS = {"absent": "absent", "failed": "failed", "no value": "without a value"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One line. Means, limits and ``detectable`` in the metric's own unit (rates 0..1); missing is None.

    ``interval``: the method of its limits. ``p_equivalent``: of a difference outside the margin, corrected by Holm.
    ``only_a only_b mcnemar``: only for 0/1 answers without shared contexts. ``noisy``: questions of which numeric noise
    could flip an answer, None if no margin or dtype is known. ``unpaired``: rows without a partner.
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
    p_equivalent: float | None = None
    only_a: int | None = None
    only_b: int | None = None
    mcnemar: float | None = None
    detectable: float | None = None
    noisy: int | None = None
    verdict: str = INCONCLUSIVE
    unpaired: tuple[Unpaired, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All lines of two sides, the names of the sides, and notes for the reader.

    ``windows``: whether the paired cells share window, recent tokens and pool
    (`kvbench.report.tables.observation_note`).
    """

    a: str
    b: str
    windows: str
    compared: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    lines: tuple[Difference, ...]
    overall: Difference | None
    alpha: float
    relevant: float
    notes: tuple[str, ...]

    @property
    def all_lines(self) -> list[Difference]:
        """The lines, the overall one last."""
        return [*self.lines, *([self.overall] if self.overall else [])]


def compare(
    a: Side,
    b: Side,
    alpha: float = ALPHA,
    relevant: float = RELEVANT,
    resamples: int = RESAMPLES,
    pairing: Pairing | None = None,
) -> Comparison:
    """Compare two sides, each of which has rows. pairing: their `pair`, if it is at hand.

    ``alpha``: the chance of one false "better" or "worse" among all lines, and of one false "equivalent".
    ``relevant``: the difference of rates that matters, which is the margin of "equivalent".

    Raises ValueError as `kvbench.report.compare.paired_rows.pair` does.
    """
    pairing = pair(a, b) if pairing is None else pairing
    pairs = tuple(both for match in pairing.matches for both in match.rows)
    hashes = [(row.prompt_sha256, other.prompt_sha256) for row, other in pairs]
    different = sum(None not in both and both[0] != both[1] for both in hashes)
    notes = []
    if different:
        notes.append(
            f"{different} of {len(hashes)} questions have different prompts on the two sides, so more differs than the "
            "cells."
        )
    notes += settings_that_differ(pairing, a, b, "A", "B")
    matches = [*pairing.matches]
    filled = [match for match in matches if match.rows]
    if any(SETTING in match.key for match in filled):
        notes.append("No overall line: lines differ in settings that their columns do not say.")
    elif len(filled) > 1:
        try:
            common_scale(pairs)
            matches.append(Match({}, pairs, (), pairs))
        except UserError as error:  # values without a common unit
            notes.append(f"No overall line: {error}.")
    lines = judged(matches, a, b, alpha, relevant, resamples)
    overall = None
    if len(lines) > len(pairing.matches):
        overall = replace(lines.pop(), metric=" ".join(sorted({row.metric or "value" for row, _ in pairs})))
    describe = {row.cell: side.describe for both in pairs for row, side in zip(both, (a, b), strict=True)}
    return Comparison(
        a=a.name,
        b=b.name,
        windows=windows(dict.fromkeys(describe), lambda cell: describe[cell](cell)),
        compared=pairing.compared,
        lines=tuple(lines),
        overall=overall,
        alpha=alpha,
        relevant=relevant,
        notes=tuple(notes),
    )


def judged(
    matches: Sequence[Match], a: Side, b: Side, alpha: float, relevant: float, resamples: int
) -> list[Difference]:
    """Return one line per match, judged together: Holm's correction is over all. Arguments as of `compare`."""
    family = [Paired.of(match.rows) for match in matches if match.rows]
    strictest = alpha / max(1, len(family))
    tests = [sign_flip(paired.sums()[0], finest=strictest) for paired in family]
    p_holm = holm([test.p for test in tests])
    p_equivalent = holm([_p_equivalent(paired, relevant) for paired in family])
    results = zip(family, tests, p_holm, p_equivalent, strict=True)
    lines = []
    for match in matches:
        if not match.rows:
            metric = next((row.metric for rows in match.both for row in rows if row.metric), None)
            none = Difference(key=match.key, metric=metric, rate=True, n=0, clusters=0, unpaired=match.unpaired)
            lines.append(none)
            continue
        paired, test, of_line, equal = next(results)
        limits = interval(paired, resamples)
        line = Difference(
            key=match.key,
            metric=match.rows[0][0].metric,
            rate=paired.rate,
            **estimates(paired, limits),
            interval=limits.method,
            p=test.p,
            p_method=test.method,
            p_holm=of_line,
            p_equivalent=equal,
            detectable=detectable(paired, strictest),
            noisy=_near_ties(match, a, b),
            verdict=_verdict(paired, of_line, equal, alpha),
            unpaired=match.unpaired,
        )
        if paired.binary and paired.independent:
            only_a, only_b = int((paired.difference < 0).sum()), int((paired.difference > 0).sum())
            line = replace(line, only_a=only_a, only_b=only_b, mcnemar=mcnemar(only_a, only_b))
        lines.append(line)
    return lines


def _p_equivalent(paired: Paired, margin: float) -> float:
    """Return the p of a difference outside the margin; 1.0 for values without a scale and for few contexts."""
    return p_not_within(paired, -margin, margin) if paired.rate and paired.clusters >= FEW else 1.0


def _verdict(paired: Paired, p_holm: float, p_equivalent: float, alpha: float) -> str:
    if p_holm <= alpha:
        return BETTER if float(paired.gain().difference.mean()) > 0 else WORSE
    return EQUIVALENT if p_equivalent <= alpha else INCONCLUSIVE


def _near_ties(match: Match, a: Side, b: Side) -> int | None:
    """Return how many questions numeric noise could flip; None if that is known of no answer."""
    steps = [cache(lambda cell, side=side: step_of(side.describe(cell))) for side in (a, b)]
    flips = [[could_flip(row, step(row.cell)) for row, step in zip(both, steps, strict=True)] for both in match.rows]
    known = [both for both in flips if both != [None, None]]
    return sum(map(any, known)) if known else None


def step_of(description: Mapping[str, Any] | None) -> float | None:
    """Return the step of the dtype in the description of a cell; None if there is none."""
    model = (description or {}).get("model")
    return STEPS.get(str(model.get("dtype"))) if isinstance(model, Mapping) else None


def could_flip(row: Row, step: float | None) -> bool | None:
    """Return whether the margin of an answer is below the step of its cell's dtype; None if one is unknown."""
    return None if step is None or row.top2_margin is None else row.top2_margin < step


def settings_that_differ(pairing: Pairing, a: Side, b: Side, name_a: str, name_b: str) -> list[str]:
    """Return one line that names the settings in which paired cells differ, beside those that are compared; or none."""
    names: set[str] = set()
    for cells in {(row.cell, partner.cell) for match in pairing.matches for row, partner in match.rows}:
        descriptions = [a.describe(cells[0]), b.describe(cells[1])]
        if None not in descriptions and cells[0] != cells[1]:
            names |= differences(descriptions)
    compared = {*pairing.compared, *(f"{group}.name" for group in pairing.compared)}
    first = ("policy.window", "policy.recent", "policy.pool")  # they move numbers most, so that no list leaves them out
    others = sorted(names - compared, key=lambda name: (not name.startswith(first), name))
    line = f"Settings that differ between {name_a} and {name_b}: {shortened(others, _LISTED)}."
    return [line] if others else []


def as_tree(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain values for JSON."""

    def line(difference: Difference) -> dict[str, Any]:
        columns = asdict(difference)
        return columns.pop("key") | columns

    return {
        "a": comparison.a,
        "b": comparison.b,
        "windows": comparison.windows,
        "compared": {name: {"a": list(a), "b": list(b)} for name, (a, b) in comparison.compared.items()},
        "alpha": comparison.alpha,
        "relevant": comparison.relevant,
        "lines": [line(difference) for difference in comparison.lines],
        "overall": line(comparison.overall) if comparison.overall else None,
        "notes": list(comparison.notes),
    }


def report_of(comparison: Comparison) -> Report:
    """Return a comparison as a table of what tells its lines apart and their figures, for programs with all columns.

    Lines that one side lacks are in no table.
    """
    names = _varying(comparison)
    lines = [(line, figures(line)) for line in comparison.all_lines]
    empty = [head for head in _RARE if all(texts[head] in ("", "0") for _, texts in lines)]
    heads = [head for head in lines[0][1] if head not in empty]
    table_rows = []
    for line, texts in lines:
        if _only_on(line):
            continue
        labels = [as_typed(line.key[name]) if name in line.key else "" for name in names]
        if line is comparison.overall and labels:
            labels[0] = "overall"
        cells = (Figure(texts[head], tone=TONES.get(texts[head], "")) for head in heads)
        table_rows.append(TableRow(tuple(labels), tuple(cells)))
    explained, not_compared = notes(comparison)
    table = Table.of(
        names,
        heads,
        table_rows,
        title=title(comparison),
        caption=(comparison.windows,),
        notes=tuple(explained),
        errors=tuple(not_compared),
        align="r" * (len(heads) - 1) + "l",
    )
    return Report(tables=(table,), records=_records(comparison), tree=as_tree(comparison))


def title(comparison: Comparison) -> str:
    """Name A, B and what all lines share."""
    lines = comparison.lines
    common = {name: value for name, value in lines[0].key.items() if all(line.key[name] == value for line in lines)}
    named = [f"{name} {as_typed(value)}" for name, value in common.items() if value is not None and name in _KEYS]
    return f"A: {comparison.a}; B: {comparison.b}" + (f" ({', '.join(named)})" if named else "")


def p_text(value: float | None) -> str:
    """Return a p with four decimals; "" for none."""
    return "" if value is None else "<0.0001" if value < 0.0001 else f"{value:.4f}"


def figures(line: Difference) -> dict[str, str]:
    """Return the texts of a line by their heads; rates in points."""
    factor, digits = (100.0, 1) if line.rate else (1.0, 4)

    def number(value: float | None, sign: str = "") -> str:
        return "" if value is None else f"{factor * value:{sign}.{digits}f}"

    limits = f" [{number(line.low, '+')}, {number(line.high, '+')}]" if line.low is not None else ""
    return {
        "n": str(line.n) if line.clusters == line.n else f"{line.n} ({line.clusters} contexts)",
        "A": number(line.mean_a),
        "B": number(line.mean_b),
        "B - A [95 %]": number(line.difference, "+") + limits,
        "p": p_text(line.p),
        "p Holm": p_text(line.p_holm),
        "only A:B": "" if line.only_a is None else f"{line.only_a}:{line.only_b}",
        "McNemar": p_text(line.mcnemar),
        "MDE": number(line.detectable),
        "near-ties": "" if line.noisy is None else str(line.noisy),
        "verdict": line.verdict,
    }


def notes(comparison: Comparison) -> tuple[list[str], list[str]]:
    """Explain the columns in at most four lines, and name what is missing."""
    lines = [line for line in comparison.all_lines if line.n]
    family = f" over {len(lines)} lines" if len(lines) > 1 else ""
    unit = "points" if all(line.rate for line in comparison.lines) else "points or the unit of the metric"
    few = f", Student's below {FEW} contexts" * any(line.interval == "student" for line in lines)
    ties = " near-ties: answers that numeric noise could flip." * any(line.noisy for line in lines)
    texts = [
        f"B - A in {unit}, 95 % interval of each line alone{few}. Verdict: p Holm <= {comparison.alpha:g}{family}; "
        f"equivalent: within {100 * comparison.relevant:g} points.",
        f"p: sign-flip test. MDE: the difference that this n detects with 80 % power.{ties}",
        *_needed(comparison),
    ]
    names = _varying(comparison)
    missing: dict[str, list[str]] = {}  # the lines by what they lack
    for line in comparison.lines:
        values = {name: as_typed(line.key[name]) for name in names if line.key.get(name) is not None}
        where = " ".join(value if name in _PLAIN else f"{name} {value}" for name, value in values.items())
        if side := _only_on(line):
            missing.setdefault(f"only in {side}", []).append(where)
            continue
        for (side, reason), samples in counted(line.unpaired).items():
            missing.setdefault(f"{side}: {len(samples)} {_REASONS[reason]} ({numbered(samples)})", []).append(where)
    not_compared = [
        f"{reason}: {shortened(places, _NAMED)}".removesuffix(": ") for reason, places in sorted(missing.items())
    ]
    return [*texts, *comparison.notes], ["Not compared:", *not_compared] if not_compared else []


def _needed(comparison: Comparison) -> list[str]:
    """Return a sentence on what the inconclusive lines can show and how many prompts the margin needs, or none."""
    margin = comparison.relevant
    blind = [
        (line.detectable, line.clusters)
        for line in comparison.all_lines
        if line.verdict == INCONCLUSIVE and line.rate and line.detectable is not None and margin < line.detectable < 1
    ]
    if not blind:
        return []
    shows = " to ".join(dict.fromkeys(f"{100 * limit(blind)[0]:.0f}" for limit in (min, max)))
    needed = f"{float(f'{max(count * (size / margin) ** 2 for size, count in blind):.2g}'):,.0f}"
    return [f"Inconclusive lines detect {shows} points; {100 * margin:g} points need about {needed} prompts."]


def _only_on(line: Difference) -> str:
    """Name the side that has no rows of a line; "" if both have some."""
    samples = {row.sample for row in line.unpaired}
    for side, other in ("AB", "BA"):
        absent = {row.sample for row in line.unpaired if (row.side, row.reason) == (side, "absent")}
        if line.n == 0 and absent == samples:
            return other
    return ""


def _varying(comparison: Comparison) -> list[str]:
    lines = comparison.lines
    varying = [name for name in lines[0].key if len({repr(line.key[name]) for line in lines}) > 1]
    return varying or ["task"] * ("task" in lines[0].key)


def _records(comparison: Comparison) -> list[dict[str, Any]]:
    names = [*_KEYS, *(name for name in comparison.lines[0].key if name not in _KEYS)]
    columns = [field.name for field in fields(Difference) if field.name not in ("key", "rate", "unpaired")]
    records = []
    for line in comparison.all_lines:
        record: dict[str, Any] = {"line": "overall" if line is comparison.overall else "cell"}
        record |= {name: line.key.get(name) for name in names} | {name: getattr(line, name) for name in columns}
        for side in "AB":
            record[f"unpaired_{side.lower()}"] = len({row.sample for row in line.unpaired if row.side == side})
        records.append(record)
    return records
