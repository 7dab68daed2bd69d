"""`kvbench report pages`: what a method loses when it keeps whole pages or shared sets, as an engine does.

Each cell with `policy.page` above 1, or with a `policy.share` other than `head`, is compared with the cell that differs
in nothing but these settings: its own set for every head, token by token, at the same budget. Differences are paired by
prompt, and judged as in `kvbench compare`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from kvbench.records import Row
from kvbench.records.lines import Warn
from kvbench.report.compare.compare import ALPHA, RELEVANT, Difference, figures, judged
from kvbench.report.compare.paired_rows import Match, Side, pair
from kvbench.report.experiments import Experiments
from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.frames import Source, place_of
from kvbench.report.rows import describer, load
from kvbench.report.selection import NothingSelected, Where
from kvbench.report.stats.intervals import RESAMPLES
from kvbench.report.stats.verdicts import TONES
from kvbench.report.tables.summary import budget_key
from kvbench.support.grouped import grouped
from kvbench.support.quantity import size

SETTINGS: Mapping[str, Any] = {"page": 1, "page_score": "max", "share": "head", "share_score": "mean"}
"""What a set of a policy depends on beside its method, with the values of a method as published."""
_NAMES = ("model", "task", "context_length", "policy", "score", "budget")
NOTE = (
    "per head: the method as published, a set for each head. this set: whole pages, or a set for a layer or the model. "
    "Difference: this set - per head, in points or the unit of the metric, with a 95 % interval of each line alone. "
    f"Verdict: p Holm <= {ALPHA:g} over all tables (sign-flip test); equivalent: within {100 * RELEVANT:g} points. "
    "kept: KV pairs per head. bytes: allocated, a partly filled page like a full one."
)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A set compared with the sets of single heads. kept, bytes: means over the paired prompts; None where unknown.

    setting: what else tells it from sets of the same names.
    """

    model: str
    task: str
    context_length: int | None
    policy: str
    score: str | None
    budget: str
    page: int
    page_score: str
    share: str
    share_score: str
    setting: str | None
    kept_per_head: float | None
    kept: float | None
    bytes_per_head: float | None
    bytes: float | None
    difference: Difference


def losses(source: Source, warn: Warn, where: Where | None = None, resamples: int = RESAMPLES) -> list[Loss]:
    """Return one line per cell with pages or shared sets whose per-head cell has rows of the same prompts.

    Raises as `kvbench.report.rows.load`, and NothingSelected where no cell has a partner.
    """
    describe, place = describer(source), str(place_of(source) or id(source))
    cells = grouped(load(source, warn, where), lambda row: row.cell)
    policies = {cell: _policy_of(describe(cell)) for cell in cells}
    per_head = {
        _method(describe(cell)): cell
        for cell, policy in sorted(policies.items(), key=lambda item: -len(item[1] or ()))
        if policy is not None and _is_per_head(policy)
    }
    pairs: list[tuple[str, str, Match]] = []
    for cell, policy in policies.items():
        base = None if policy is None or _is_per_head(policy) else per_head.get(_method(describe(cell)))
        if base is not None and {row.sample for row in cells[base]} & {row.sample for row in cells[cell]}:
            per_head_side, side = (Side(name, cells[name], place, describe) for name in (base, cell))
            pairs += [(base, cell, match) for match in pair(per_head_side, side).matches]
    if not pairs:
        raise NothingSelected(
            "no cell with policy.page or policy.share has rows of the same prompts as the cell without: run both, such "
            "as policy.page=1,16 policy.share=head,layer,model"
        )
    both = Side("", (), place, describe)
    named = {
        cell: (*(getattr(cells[cell][0], name) for name in _NAMES), _set_of(policies[cell])) for _, cell, _ in pairs
    }
    words = Experiments((), describe).told_apart(named)
    lines = judged([match for _, _, match in pairs], both, both, ALPHA, RELEVANT, resamples)
    compared = [
        _loss(cells[base][0], policies[cell] or {}, words[cell], match, line)
        for (base, cell, match), line in zip(pairs, lines, strict=True)
    ]
    return sorted(compared, key=_place)


def _policy_of(description: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the settings of a policy that evicts; None without a description."""
    policy = (description or {}).get("policy")
    return policy if isinstance(policy, Mapping) and "budget" in policy.get("accepts", ()) else None


def _set_of(policy: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return the settings of a set beside its method."""
    return tuple((policy or {}).get(name, default) for name, default in SETTINGS.items())


def _is_per_head(policy: Mapping[str, Any]) -> bool:
    return all(policy.get(name, SETTINGS[name]) == SETTINGS[name] for name in ("page", "share"))


def _method(description: Mapping[str, Any] | None) -> str:
    """Return all that a cell is, without pages and shared sets."""
    policy = _policy_of(description) or {}
    method = {name: value for name, value in policy.items() if name not in SETTINGS}
    return json.dumps({**(description or {}), "policy": method}, sort_keys=True, default=str)


def _loss(first: Row, policy: Mapping[str, Any], setting: str | None, match: Match, difference: Difference) -> Loss:
    def mean(side: int, column: str) -> float | None:
        values = [value for rows in match.rows if (value := getattr(rows[side], column)) is not None]
        return fmean(values) if values else None

    return Loss(
        model=first.model,
        task=first.task,
        context_length=first.context_length,
        policy=first.policy,
        score=first.score,
        budget=first.budget,
        **{name: policy.get(name, default) for name, default in SETTINGS.items()},
        setting=setting,
        kept_per_head=mean(0, "kept_tokens"),
        kept=mean(1, "kept_tokens"),
        bytes_per_head=mean(0, "allocated_bytes"),
        bytes=mean(1, "allocated_bytes"),
        difference=difference,
    )


def _place(loss: Loss) -> tuple[Any, ...]:
    sets = (loss.page, ("head", "layer", "model").index(loss.share), loss.page_score, loss.share_score)
    method = (loss.policy, loss.score or "", budget_key(loss.budget))
    return loss.model, loss.task, loss.context_length or 0, *method, *sets, loss.setting or ""


def report_of(source: Source, warn: Warn, where: Where | None = None) -> Report:
    """Return the report of a folder or a frame: a table per task for readers, all columns for programs. Raises as
    `losses`.
    """
    lines = losses(source, warn, where)
    tasks = grouped(lines, lambda loss: (loss.model, loss.task, loss.context_length))
    tables = tuple(_table(*task, members) for task, members in tasks.items())
    return Report(tables=tables, notes=(NOTE,), records=[_record(loss) for loss in lines])


def _record(loss: Loss) -> dict[str, Any]:
    columns = asdict(loss)
    difference = columns.pop("difference")
    return columns | {name: value for name, value in difference.items() if name not in ("key", "rate", "unpaired")}


def _table(model: str, task: str, tokens: int | None, losses: list[Loss]) -> Table:
    length = "" if tokens is None else f", {tokens} tokens"
    labels = ("policy", "score", "budget", "page", "share", *(["setting"] if any(e.setting for e in losses) else []))
    heads = ("n", "per head", "this set", "difference [95 %]", "p", "p Holm", "MDE", "kept", "bytes", "verdict")
    return Table.of(
        labels,
        heads,
        [_line(loss, len(labels)) for loss in losses],
        title=f"model {model}, task {task}{length}: what whole pages and shared sets lose",
        align="r" * (len(heads) - 1) + "l",
    )


def _line(loss: Loss, labels: int) -> TableRow:
    of_difference = figures(loss.difference)
    compared = [of_difference[head] for head in ("n", "A", "B", "B - A [95 %]", "p", "p Holm", "MDE")]
    verdict = of_difference["verdict"]
    page = f"{loss.page} {loss.page_score}" if loss.page_score != SETTINGS["page_score"] else f"{loss.page}"
    share = f"{loss.share} {loss.share_score}" if loss.share_score != SETTINGS["share_score"] else loss.share
    kept = "" if loss.kept is None or loss.kept_per_head is None else f"{loss.kept_per_head:.1f}, {loss.kept:.1f}"
    sizes = (loss.bytes_per_head, loss.bytes)
    held = ", ".join("?" if number is None else size([number]) for number in sizes) if any(sizes) else ""
    texts_of_labels = (loss.policy, loss.score or "", loss.budget, page, share, loss.setting or "")
    return TableRow(
        texts_of_labels[:labels], (*map(Figure, (*compared, kept, held)), Figure(verdict, tone=TONES.get(verdict, "")))
    )
