"""The page of a file of claims: how old it is, and of every family its claims with their verdicts, and its cells."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvbench.extras.claims.age import sentences
from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.cells import Against, CellLine, cell_lines
from kvbench.extras.claims.file import Claim, Claims, ClaimsFile, Family
from kvbench.extras.claims.verdicts import CONFIRMED, CONTRADICTED, WAITING, OfTask, Verdict, check
from kvbench.report.compare.compare import p_text
from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.stats.verdicts import BETTER, EQUIVALENT, NOT_WORSE, WORSE
from kvbench.support.grouped import grouped
from kvbench.support.quantity import shortened, size

_CLAIMED = ("name", "family", "says", "shows", "expects", "margin")
_TONES = {CONFIRMED: "good", CONTRADICTED: "bad"}
_LISTED = 3
_SAME_BYTES = 0.02
"""Shares of bytes that differ by less are the same."""


def report_of(file: ClaimsFile, answers: Answers) -> Report:
    """Return all that rows say of a file of claims. Raises as `check`."""
    claims, verdicts = file.claims, check(answers)
    of_family = grouped(verdicts, lambda each: each.claim.family)
    families = {name: of_family[name] for name in claims.families if name in of_family}
    lines = {name: cell_lines(answers, name) for name in families}
    tables = [
        table
        for name, members in families.items()
        for table in (_claims(claims, name, members), _cells(claims, name, lines[name]))
    ]
    records = [_record(each) for members in families.values() for each in members]
    when = sentences(file, answers)
    cells = {name: [_cell_record(line) for line in members] for name, members in lines.items()}
    return Report(
        title=" ".join(claims.says.split()),
        head=tuple(when),
        tables=tuple(tables),
        notes=tuple(_notes(claims, verdicts)),
        records=records,
        tree={"says": claims.says, "alpha": claims.alpha, "when": when, "claims": records, "cells": cells},
    )


def _claims(claims: Claims, name: str, verdicts: Sequence[Verdict]) -> Table:
    """Return the claims of a family, with both sides in full."""
    heads = ("A", "B", "claimed", "n (texts)", "mean A", "mean B", *claims.beside, "B - A [95 %]", "p Holm", "verdict")
    return Table.of(
        ("claim",),
        heads,
        [TableRow((each.claim.says,), tuple(_figures(each, claims))) for each in verdicts],
        title=f"{name}: {len(verdicts)} claims",
        caption=(_prompts(claims.families[name]), f"p is corrected over the {len(verdicts)} claims"),
        align=f"lllrrr{'r' * len(claims.beside)}rrl",
    )


def _prompts(family: Family) -> str:
    """Return the tasks and prompts of a family, and the conditions that all of its sides share."""
    shared = ", ".join(f"{key}={value}" for key, value in family.common.items())
    numbers = f"{family.first} to {family.first + family.samples - 1}"
    prompts = f"{', '.join(family.tasks)}: {family.samples} prompts of each, numbers {numbers}"
    return f"{prompts}; unless a side says otherwise {shared}" if shared else prompts


def _figures(each: Verdict, claims: Claims) -> list[Figure]:
    counted = f"{each.n} ({each.clusters})" if each.n else ""
    texts = [each.a.words, each.b.words, _claimed(each.claim), counted]
    texts += [_mean(value, each.rate) for value in (each.mean_a, each.mean_b)]
    texts += [_mean(each.beside.get(name), each.rate) for name in claims.beside]
    texts += [_difference(each.difference, each.low, each.high, each.rate), p_text(each.p_holm)]
    return [*map(Figure, texts), Figure(_verdict(each), tone=_TONES.get(each.verdict, ""))]


def _claimed(claim: Claim) -> str:
    if claim.expects is not None:
        return "A and B differ" if claim.expects == "either" else claim.expects.replace("a ", "A ").replace("b ", "B ")
    is_equivalence = claim.shows == "equivalence"
    return f"{EQUIVALENT} within {claim.margin:g}" if is_equivalence else f"B at most {claim.margin:g} worse"


def _verdict(each: Verdict) -> str:
    """Return the verdict of a claim, and the evidence for it."""
    if each.verdict == WAITING:
        return f"not run: {each.rows} of {each.planned} rows"
    if each.verdict not in _TONES:
        return each.verdict
    shown = {"equivalence": EQUIVALENT, "not worse": NOT_WORSE}.get(each.claim.shows)
    return f"{each.verdict}: {shown or (BETTER if each.b_is_better else WORSE)}"


def _cells(claims: Claims, name: str, lines: Sequence[CellLine]) -> Table:
    """Return the cells of a family: how many of their rows there are, and what they answer beside the others."""
    family = claims.families[name]
    against = [f"minus {beside} [95 %]" for beside in claims.beside]
    return Table.of(
        ("cell",),
        ("rows", "kept", *family.tasks, *against),
        [_cell_line(line, claims) for line in lines],
        title=f"{name}: {len(lines)} cells",
        caption=(f"{sum(line.rows for line in lines)} of {sum(line.planned for line in lines)} rows",),
    )


def _cell_line(line: CellLine, claims: Claims) -> TableRow:
    words = f"{line.name}: {line.cell.words}" if line.name else line.cell.words
    held = "" if line.held is None else size([line.held])
    texts = [f"{line.rows} of {line.planned}", held, *(_mean(value, line.rate) for value in line.means)]
    texts += [_against(line.against.get(name), line.rate) for name in claims.beside]
    return TableRow((words,), tuple(map(Figure, texts)), reference=bool(line.name))


def _against(each: Against | None, rate: bool) -> str:
    if each is None:
        return ""
    unlike = each.times is not None and abs(each.times - 1) > _SAME_BYTES
    times = f" at {each.times:.2f} times its bytes" if unlike else ""
    return f"{_difference(each.difference, each.low, each.high, rate)}{times}"


def _mean(value: float | None, rate: bool) -> str:
    """Percent of a rate, or a perplexity."""
    if value is None:
        return ""
    return f"{100 * value:.1f}" if rate else f"{math.exp(min(value, 700.0)):.2f}"


def _difference(value: float | None, low: float | None, high: float | None, rate: bool) -> str:
    """Return a difference of rates in points, of perplexities in percent, with its interval."""
    if value is None:
        return ""
    limits = "" if low is None or high is None else f" [{_points(low, rate)}, {_points(high, rate)}]"
    return _points(value, rate) + limits


def _points(value: float, rate: bool) -> str:
    return f"{100 * value:+.1f}" if rate else f"{100 * math.expm1(min(value, 700.0)):+.1f}"


def _notes(claims: Claims, verdicts: Sequence[Verdict]) -> list[str]:
    notes = [
        "Means are percent or perplexities; B - A is in points or percent, with the interval of each line alone. "
        f"Verdict: p Holm <= {claims.alpha:g} over the family (sign flips, or one-sided tests against the margin).",
        f"Left out of a claim, as the file says: tasks where both sides are below {claims.floor:g} % or above "
        f"{claims.ceiling:g} %{_ends(verdicts)}.",
    ]
    if claims.beside:
        notes.append(f"{', '.join(claims.beside)}: at the budget of each cell, on the same prompts; no claim, no p.")
    waiting = grouped((each for each in verdicts if each.verdict == WAITING and each.rows), _why)
    named = ((shortened([each.claim.name for each in members], _LISTED), why) for why, members in waiting.items())
    notes += [f"Waiting: {names}: {why}." for names, why in named]
    return notes


def _ends(verdicts: Sequence[Verdict]) -> str:
    """Name the tasks that were left out of claims."""
    left = [f"{each.claim.name}: {_left_out(task)}" for each in verdicts for task in each.tasks if task.left_out]
    return f": {shortened(left, _LISTED)}" if left else ""


def _why(each: Verdict) -> str:
    """Say what a claim waits for."""
    short = ", ".join(f"{task.task} {task.n}" for task in each.tasks if task.n < each.needed)
    return "; ".join(each.missing) or f"{each.needed} prompts of each task, there are {short}"


def _left_out(task: OfTask) -> str:
    assert task.mean_a is not None and task.mean_b is not None
    return f"{task.task} at the {task.left_out} ({100 * task.mean_a:.1f} and {100 * task.mean_b:.1f} %)"


def _record(each: Verdict) -> dict[str, Any]:
    columns = {name: value for name, value in asdict(each).items() if name not in ("claim", "a", "b", "b_is_better")}
    sides = {"a": each.a.words, "b": each.b.words}
    return {name: getattr(each.claim, name) for name in _CLAIMED} | sides | columns


def _cell_record(line: CellLine) -> dict[str, Any]:
    return asdict(line) | {"cell": line.cell.words}
