"""The verdicts of a file of claims as a table, family by family."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvbench.report.claims.file import Claims
from kvbench.report.claims.verdicts import CONFIRMED, CONTRADICTED, NOTHING, WAITING, OfTask, Verdict
from kvbench.report.compare.compare import p_text
from kvbench.report.formats.table import Figure, Line, Report, Table
from kvbench.support.grouped import grouped

_HEADS = ("shows", "n", "A", "B", "B - A [95 %]", "p", "p Holm", "verdict")
_CLAIMED = ("name", "family", "says", "shows", "expects", "margin")
_TONES = {CONFIRMED: "good", CONTRADICTED: "bad"}


def report_of(claims: Claims, verdicts: Sequence[Verdict], when: Sequence[str]) -> Report:
    """The verdicts as a report. when: lines that say when the file and the rows were made."""
    ordered = sorted(verdicts, key=lambda each: list(claims.families).index(each.claim.family))
    lines = [Line((each.claim.family, each.claim.name), tuple(_figures(each))) for each in ordered]
    table = Table.of(
        ("family", "claim"),
        _HEADS,
        lines,
        groups=1,
        align=f"l{'r' * (len(_HEADS) - 2)}l",
        notes=tuple(_notes(claims, ordered)),
    )
    return Report(
        title=" ".join(claims.says.split()),
        head=tuple(when),
        tables=(table,),
        records=[_record(each) for each in ordered],
        tree={"says": claims.says, "alpha": claims.alpha, "claims": [_record(each) for each in ordered]},
    )


def _figures(each: Verdict) -> list[Figure]:
    claim = each.claim
    shows = claim.shows if claim.margin is None else f"{claim.shows}, {claim.margin:g}"
    texts = [shows if claim.expects is None else claim.expects, f"{each.n}" if each.n else ""]
    if each.n and each.clusters < each.n:
        texts[-1] += f" ({each.clusters} texts)"
    limits = "" if each.low is None else f" [{_points(each, each.low)}, {_points(each, each.high)}]"
    texts += [_mean(each, each.mean_a), _mean(each, each.mean_b), _points(each, each.difference) + limits]
    texts += [p_text(each.p), p_text(each.p_holm), each.verdict]
    return [*map(Figure, texts[:-1]), Figure(texts[-1], tone=_TONES.get(each.verdict, ""))]


def _mean(each: Verdict, value: float | None) -> str:
    """Percent of a rate, or a perplexity."""
    if value is None:
        return ""
    return f"{100 * value:.1f}" if each.rate else f"{math.exp(min(value, 700.0)):.2f}"


def _points(each: Verdict, value: float | None) -> str:
    """A difference of rates in points, of perplexities in percent."""
    if value is None:
        return ""
    return f"{100 * value:+.1f}" if each.rate else f"{100 * math.expm1(value):+.1f}"


def _notes(claims: Claims, verdicts: Sequence[Verdict]) -> list[str]:
    notes = [
        "B - A in points, of perplexities in percent, with the interval of that line alone. p: sign flips for "
        "differences, one-sided tests against the margin otherwise; p Holm: over all claims of a family. A verdict "
        f"needs p Holm <= {claims.alpha:g}."
    ]
    waiting = grouped((each for each in verdicts if each.verdict == WAITING), _why)
    notes += [
        f"{', '.join(each.claim.name for each in members)}: wait{'s' * (len(members) == 1)} for rows: {why}."
        for why, members in waiting.items()
    ]
    for each in verdicts:
        if left := [task for task in each.tasks if task.left_out]:
            notes.append(f"{each.claim.name}: left out: {', '.join(map(_left_out, left))}.")
    if any(each.verdict == NOTHING for each in verdicts):
        notes.append("no room: every task of the claim is at the floor or the ceiling.")
    return notes


def _why(each: Verdict) -> str:
    """What a claim waits for."""
    short = ", ".join(f"{task.task} {task.n}" for task in each.tasks if task.n < each.needed)
    return "; ".join(each.missing) or f"{each.needed} prompts of each task, there are {short}"


def _left_out(task: OfTask) -> str:
    assert task.mean_a is not None and task.mean_b is not None
    return f"{task.task} at the {task.left_out} ({100 * task.mean_a:.1f} and {100 * task.mean_b:.1f} %)"


def _record(each: Verdict) -> dict[str, Any]:
    columns = {name: value for name, value in asdict(each).items() if name not in ("claim", "b_is_better")}
    return {name: getattr(each.claim, name) for name in _CLAIMED} | columns
