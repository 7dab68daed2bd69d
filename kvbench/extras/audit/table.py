"""The audit of a table as a report: all differences, averages with the test over tasks, the best of each column."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvbench.extras.audit.pair_tests import FEWEST, least_correlation, needed, smallest_gain
from kvbench.extras.audit.pairs import LEVELS, Pair, possible_sizes
from kvbench.extras.audit.verdicts import Judged, Verdict, judged
from kvbench.report.formats.table import Report, Table, TableRow
from kvbench.report.stats.paired_tests import holm
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun

NEVER = 10**6
"""Prompts of a pair that is only planned for, so many that no mean is a whole number of them."""
LEVEL_NOTE = (
    "p best...any: from the most to the least favourable answers that the means allow; rho0: independent answers; "
    "rho*: the least correlation at which p <= 0.05; MDE, need: gain and prompts with 80 % power at any...best"
)
VERDICT_NOTE = (
    "decided: p <= 0.05 at any, or twice the smaller of it and p over tasks; inconclusive: not at best; depends: else"
)


@dataclass(frozen=True)
class Compared:
    """Two printed means. of, against: b and a. place: task and all that both share. pair: both in 0..1, with n = NEVER
    if n is not known. source: where n is from. scale: of the printed unit.
    reason: why nothing is judged, or "".
    """

    of: str
    against: str
    place: Mapping[str, str]
    pair: Pair
    known: bool
    source: str
    scale: float
    reason: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of its line."""
        return (self.of, self.against, " ".join(filter(None, self.place.values())))


def report_of(
    title: str, pairs: Sequence[Compared], bests: Sequence[Compared] = (), notes: Sequence[str] = ()
) -> Report:
    """Return the audit: a table of differences, one of averages, one of columns; for programs one record a
    comparison.
    """
    cells = [judged([compared.pair], over_tasks=False) if _is_judged(compared) else None for compared in pairs]
    corrected = _holm(cells)
    records = [_record(compared, cell, p) for compared, cell, p in zip(pairs, cells, corrected, strict=True)]
    averages = _averages(pairs)
    tables = [_cells_table(pairs, cells, corrected)]
    if averages:
        tables.append(_averages_table(averages))
        records += _average_records(averages)
    if bests:
        tables.append(_bests_table(bests))
    sources = dict.fromkeys(compared.source for compared in pairs if compared.source)
    judged_cells = sum(cell is not None for cell in cells)
    return Report(
        title=title,
        tables=tuple(tables),
        notes=(
            *notes,
            *([f"n: {'; '.join(sources)}"] if sources else []),
            *_unknown(pairs),
            f"{count_noun(judged_cells, 'comparison')} judged, {len(pairs) - judged_cells} not; holm: p at any, "
            "corrected for all of them",
            LEVEL_NOTE,
            VERDICT_NOTE,
        ),
        records=records,
    )


def _is_judged(each: Compared) -> bool:
    return each.known and not each.reason and each.pair.judged


def _holm(cells: Sequence[Judged | None]) -> list[float | None]:
    tested = [cell.decisive for cell in cells if cell is not None]
    corrected = iter(holm(tested)) if tested else iter(())
    return [None if cell is None else next(corrected) for cell in cells]


def _unknown(pairs: Iterable[Compared]) -> list[str]:
    """Say what the printed digits show about each unknown n."""
    unknown = [each for each in pairs if not each.known]
    notes = []
    for source, members in grouped(unknown, lambda each: each.source).items():
        right = [each for each in members if each.pair.parts == 1 and each.pair.tasks == 1]
        means = [mean for each in right for mean in (each.pair.a, each.pair.b)]
        sizes = possible_sizes(means, right[0].pair.half) if right else []
        digits = f"; right and wrong answers would fit {', '.join(map(str, sizes[:8]))}" if sizes else ""
        notes.append(
            f"n is not known of {count_noun(len(members), 'line')} ({source or 'not stated'}): no verdict{digits}"
        )
    return notes


def _why_not(compared: Compared) -> str:
    """Why a pair has no verdict, or ""."""
    if compared.reason:
        return compared.reason
    if not compared.known:
        return "n unknown"
    if compared.pair.lacks_rows:
        return "no k of n has these digits: rows are missing, or scores are graded"
    return "" if compared.pair.judged else "scores without bounds need sd"


def _record(compared: Compared, cell: Judged | None, corrected: float | None) -> dict[str, Any]:
    pair, scale = compared.pair, compared.scale
    right = pair.right if compared.known else None
    plan = {f"need_{level}": needed(pair, level) if _can_plan(compared) else None for level in LEVELS}
    gains = {level: smallest_gain(pair, level) if cell is not None else None for level in LEVELS}
    return {
        "kind": "difference",
        "method": compared.of,
        "host": compared.against,
        **compared.place,
        "n": pair.n * pair.tasks if compared.known else None,
        "a": round(pair.a * scale, 9),
        "b": round(pair.b * scale, 9),
        "difference": round(pair.difference * scale, 9),
        "net": None if right is None else pair.net,
        "discordant_best": None if right is None else pair.discordant("best"),
        "discordant_any": None if right is None else pair.discordant("any"),
        **{f"p_{level}": None if cell is None else cell.p[level] for level in LEVELS},
        "least_correlation": least_correlation(pair) if cell is not None else None,
        **{f"mde_{level}": None if gain is None else gain * scale for level, gain in gains.items()},
        **plan,
        "p_tasks": None,
        "holm": corrected,
        "verdict": str(Verdict.NOT_AUDITABLE if cell is None else cell.verdict),
        "note": _why_not(compared) if cell is None else "",
    }


def _can_plan(each: Compared) -> bool:
    return not each.reason and (each.pair.bounded or each.pair.spread is not None)


def _cells_table(pairs: Sequence[Compared], cells: Sequence[Judged | None], corrected: Sequence[float | None]) -> Table:
    heads = ("n", "A", "B", "B - A", "p best...any", "p rho0", "rho*", "MDE", "need", "holm", "verdict")
    lines = []
    for compared, cell, adjusted in zip(pairs, cells, corrected, strict=True):
        pair, digits = compared.pair, _digits(compared)
        needs = [needed(pair, level) for level in LEVELS] if _can_plan(compared) else []
        gains = [smallest_gain(pair, level) for level in LEVELS] if cell is not None else []
        correlation = least_correlation(pair) if cell is not None else None
        texts = [
            _n(compared),
            f"{pair.a * compared.scale:.{digits}f}",
            f"{pair.b * compared.scale:.{digits}f}",
            f"{pair.difference * compared.scale:+.{digits}f}",
            "" if cell is None else f"{shown_p(cell.p['best'])}...{shown_p(cell.p['any'])}",
            "" if cell is None else shown_p(cell.p["rho0"]),
            "" if correlation is None else f"{correlation:.2f}",
            "/".join("-" if gain is None else f"{gain * compared.scale:.{digits}f}" for gain in gains),
            "/".join("-" if count is None else f"{count:,}" for count in needs),
            "" if adjusted is None else shown_p(adjusted),
            _why_not(compared) if cell is None else str(cell.verdict),
        ]
        lines.append(TableRow.of(compared.names, texts))
    return Table.of(("B", "against A", "place"), heads, lines, title="differences", align="r" * 10 + "l")


def _n(each: Compared) -> str:
    if not each.known:
        return "?"
    return f"{each.pair.tasks} x {each.pair.n}" if each.pair.tasks > 1 else str(each.pair.n)


def _digits(each: Compared) -> int:
    """Return the decimals of the printed means."""
    unit = 2 * each.pair.half * each.scale
    return max(0, len(f"{unit:.9f}".rstrip("0").partition(".")[2])) if unit else 3


class Averaged(NamedTuple):
    """A method against its host over a group of comparisons. budget: `all`, or the one of the group. holm: its p,
    corrected for all averages.
    """

    of: str
    against: str
    budget: str
    group: list[Compared]
    result: Judged
    holm: float


def _averages(pairs: Sequence[Compared]) -> list[Averaged]:
    """Return the mean of each method against its host over everything, and over each budget if there are several."""
    lines: list[tuple[str, str, str, list[Compared], Judged]] = []
    usable = [each for each in pairs if _is_judged(each)]
    for (of, against, _), members in grouped(usable, lambda each: (each.of, each.against, each.scale)).items():
        budgets = grouped(members, lambda each: each.place.get("budget", ""))
        groups = {"all": members, **(budgets if len(budgets) > 1 else {})}
        for name, group in groups.items():
            if len(group) > 1:
                lines.append((of, against, name, group, judged([each.pair for each in group])))
    corrected = holm([result.decisive for *_, result in lines])
    return [Averaged(*line, adjusted) for line, adjusted in zip(lines, corrected, strict=True)]


def _averages_table(averages: Sequence[Averaged]) -> Table:
    heads = (
        "cells",
        "sets",
        "B - A",
        "p best...any",
        "p rho0",
        "up-down",
        "p tasks",
        "mean over tasks",
        "need",
        "holm",
        "verdict",
    )
    lines = []
    for of, against, budget, group, result, adjusted in averages:
        tasks, scale, digits = result.tasks, group[0].scale, _digits(group[0]) + 1
        times = [result.average.times_needed(level) for level in LEVELS]
        interval = ""
        if tasks is not None and tasks.low is not None and tasks.high is not None:
            interval = f"[{tasks.low * scale:+.{digits}f}, {tasks.high * scale:+.{digits}f}]"
        texts = [
            str(len(group)),
            str(result.average.sets),
            f"{result.average.difference * scale:+.{digits}f}",
            f"{shown_p(result.p['best'])}...{shown_p(result.p['any'])}",
            shown_p(result.p["rho0"]),
            "" if tasks is None else f"{tasks.up}-{tasks.down}",
            "" if tasks is None else shown_p(tasks.p),
            interval,
            "/".join("-" if count is None else f"{count:.3g}x" for count in times),
            shown_p(adjusted),
            str(result.verdict),
        ]
        lines.append(TableRow.of((of, against, budget), texts))
    notes = (
        "errors over the same prompts add, those over different sets are independent; tasks: sign flips, one "
        "observation for each set of prompts",
    )
    return Table.of(("B", "against A", "budget"), heads, lines, title="averages", notes=notes, align="r" * 10 + "l")


def _average_records(averages: Sequence[Averaged]) -> list[dict[str, Any]]:
    return [
        {
            "kind": "average",
            "method": of,
            "host": against,
            "budget": budget,
            "n": None,
            "a": round(result.average.a * group[0].scale, 9),
            "b": round(result.average.b * group[0].scale, 9),
            "difference": round(result.average.difference * group[0].scale, 9),
            **{f"p_{level}": result.p[level] for level in LEVELS},
            **{f"se_{level}": result.average.standard_error(level) * group[0].scale for level in LEVELS},
            **{f"times_{level}": result.average.times_needed(level) for level in LEVELS},
            "sets": result.average.sets,
            "up": None if result.tasks is None else result.tasks.up,
            "down": None if result.tasks is None else result.tasks.down,
            "p_tasks": None if result.tasks is None else result.tasks.p,
            "p_sign": None if result.tasks is None else result.tasks.sign_p,
            "low": None if result.tasks is None or result.tasks.low is None else result.tasks.low * group[0].scale,
            "high": None if result.tasks is None or result.tasks.high is None else result.tasks.high * group[0].scale,
            "holm": adjusted,
            "verdict": str(result.verdict),
        }
        for of, against, budget, group, result, adjusted in averages
    ]


def _bests_table(bests: Sequence[Compared]) -> Table:
    """Return how often the best of a column is sure to be above the runner-up."""
    results = [judged([each.pair], over_tasks=False) for each in bests if _is_judged(each)]
    counts = [str(len(bests)), str(len(results)), *(str(shown_at(results, level)) for level in LEVELS)]
    few = sum(
        result.average.pairs[0].right is not None and abs(result.average.pairs[0].net) < FEWEST for result in results
    )
    notes = (f"{few} of them lead by fewer than {FEWEST} prompts, which no paired test can show",) if few else ()
    heads = ("columns", "judged", *(f"p <= 0.05 at {level}" for level in LEVELS))
    return Table.of(
        ("",), heads, [TableRow.of(("best against runner-up",), counts)], title="best of each column", notes=notes
    )


def shown_at(results: Sequence[Judged], level: Any) -> int:
    """Return how many have p <= 0.05 at a level."""
    return sum(result.p[level] <= 0.05 for result in results)


def shown_p(p: float) -> str:
    """Return a p with two digits."""
    return "1" if p > 0.995 else f"{p:.2g}" if p >= 0.001 else f"{p:.0e}".replace("e-0", "e-")
