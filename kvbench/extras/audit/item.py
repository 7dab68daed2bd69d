"""The audit of an item: how sure the differences of its published table are, from the printed means and n alone."""

from collections.abc import Mapping
from pathlib import Path

from kvbench.extras.audit.pairs import Pair
from kvbench.extras.audit.printed import SCALES, LinePair, PrintedLine, across, against_own, bests, printed_lines, swaps
from kvbench.extras.audit.table import NEVER, Compared, report_of
from kvbench.papers.item import Item, item_of
from kvbench.papers.labels import LABEL_HEADS, method, names_of, printed_name
from kvbench.papers.published import arms_of
from kvbench.report.formats.table import Report
from kvbench.support.errors import UserError

PLACE = ("model", "task", "context_length", "budget")


def audit_of(name: str, folder: Path) -> Report:
    """Return the audit of an item's published numbers, read from `folder`: scores with their host's own score, or the
    paper's own policy with each other one, or the values of its arms; and the best of each column with the runner-up.

    Raises UserError for an unknown item, and for one that prints no means of several methods.
    """
    item = item_of(name)
    only = {key: list(values) for key, values in item.only.items()}
    of_tables = [line for line in printed_lines(item.paper, folder) if line["table"] in item.published]
    lines = [line for line in of_tables if line.is_of(only)]
    pairs = swaps(lines) or against_own(lines, item.paper) or across(lines, item.arms)
    if not pairs:
        raise UserError(f"{name} prints no means of methods beside their hosts: an audit compares printed means")
    columns = [pair for pair in bests(lines) if pair.b["unit"] in SCALES]
    return report_of(
        f"Audit of {item.title}",
        [_compared(item, pair) for pair in pairs],
        [_compared(item, pair) for pair in columns],
    )


def _compared(item: Item, pair: LinePair) -> Compared:
    labels, prompts = names_of(item), pair.b.prompts
    return Compared(
        of=_label(item, labels, pair.b, pair.a),
        against=_label(item, labels, pair.a, pair.b),
        place=_place(item, labels, pair.b, pair.a),
        pair=pair.pair() or _unknown(pair),
        known=prompts is not None and prompts.n is not None,
        source="" if prompts is None else prompts.source,
        scale=SCALES.get(pair.b["unit"], 1.0),
        reason="" if pair.b["unit"] in SCALES else f"{pair.b['unit'].replace('_', ' ')} has no bounds",
    )


def _unknown(pair: LinePair) -> Pair:
    """Return a pair of which no n is known: what it needs can be said, and nothing else."""
    known = pair.pair(suppose=True)
    scale = SCALES.get(pair.b["unit"])
    if known is None or scale is None:
        return Pair(pair.a.value, pair.b.value, NEVER, pair.b.half, None, bounded=False)
    return Pair(known.a, known.b, NEVER, known.half, known.parts, known.factor, known.rho, tasks=known.tasks)


def _label(item: Item, labels: Mapping[str, str], line: PrintedLine, other: PrintedLine) -> str:
    """Return the method of a line, and the values of the arms that tell it from the other."""
    own, others = (arms_of(each["protocol"], item.arms) for each in (line, other))
    told = [
        f"{LABEL_HEADS.get(arm, arm)} {printed_name(labels, arm, own[arm])}" for arm in own if own[arm] != others[arm]
    ]
    return ", ".join([method(labels, line["policy"], line["score"]), *told])


def _place(item: Item, labels: Mapping[str, str], line: PrintedLine, other: PrintedLine) -> dict[str, str]:
    place = {key: printed_name(labels, key, line[key]) for key in PLACE if line[key]}
    own, others = (arms_of(each["protocol"], item.arms) for each in (line, other))
    return place | {arm: value for arm, value in own.items() if value == others[arm]}
