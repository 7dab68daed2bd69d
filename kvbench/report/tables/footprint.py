"""`kvbench report footprint`: the smallest share of the cache over a request's life that keeps most of the accuracy.

A request lives from its first prompt token to its last new token. After each token a cache holds some KV pairs per
head, on average; the full cache holds all. The footprint is the sum of the first over the sum of the second: the mean
over tokens of the share held, weighted by what the full cache holds (Bhaskar et al., "Cache Me If You Can", 2025,
https://arxiv.org/abs/2506.17121, which asks for the smallest footprint at 90 % of the full cache's accuracy). Heads
that keep everything while others evict from the answer count as if they grew no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from kvbench.records.labels import policy_of
from kvbench.records.lines import Warn
from kvbench.report.experiments import ASKED, Experiments
from kvbench.report.formats.table import Report, Table, TableRow
from kvbench.report.frames import Source
from kvbench.report.held import copies, steps_of, tokens_read
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import NothingSelected, Where
from kvbench.report.stats.paired import scale_of
from kvbench.report.stats.verdicts import extreme
from kvbench.report.tables.summary import NUMBER, budget_key
from kvbench.support.errors import CannotTell, UserError
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun, parse_size, size

_SETTING = ("model", "task", "context_length")
_METHOD = ("policy", "score", "variant", "layout", "schedule")
_COLUMNS = (
    *(*_SETTING, *_METHOD, "budget", "seed", "metric", "unit", "better", "value", "store"),
    *("prompt_tokens", "kept_tokens", "kept_fraction", "new_tokens", "cache_bytes", "full_cache_bytes", "peak_bytes"),
)
_BY_TURN = "prefill_block=turn"
NOTE = (
    "footprint: KV pairs held, summed over all tokens of prompt and answer, as a share of the full cache's sum. "
    "reading: until the prompt is read, scored and evicted from, which is 100 % unless schedule.prefill_block is set; "
    "answering: after that. peak: the most bytes held, with the full cache of a prompt unless it is evicted in blocks."
)


@dataclass(frozen=True)
class Life:
    """A request in tokens. read: before the first eviction is complete; kept: pairs per head after it, on average.

    later: tokens of the question, if it is read after eviction, and of the answer. block, every: of the schedule.
    limit: pairs per head that later evictions leave, at least `kept`: more, where a short prompt was kept entirely, or
    where the answer has a budget of its own.
    copies: of every pair in the evicted cache (`layout=query_heads`).
    """

    read: int
    kept: float
    later: int
    block: int | None = None
    every: int | None = None
    limit: float = 0
    copies: int = 1

    @property
    def held(self) -> np.ndarray:
        """Pairs per KV head after each token, before an eviction that follows it."""
        read, later = np.arange(self.read), np.arange(self.later)
        start = read // (self.block or self.read) * (self.block or self.read)
        first = np.minimum(self.kept, start) + read - start + 1
        since = later % (self.every or self.later or 1)
        after_eviction = np.minimum(max(self.kept, self.limit), self.kept + later - since)
        return np.concatenate((first * (self.copies if self.block else 1), self.copies * (after_eviction + since + 1)))

    @property
    def footprint(self) -> float:
        """Pairs held as a share of the full cache's, both summed over all tokens."""
        return self._share(0, self.read + self.later)

    @property
    def reading(self) -> float:
        """The footprint of the tokens before the first eviction is complete."""
        return self._share(0, self.read)

    @property
    def answering(self) -> float:
        """The footprint of the tokens after it; 1 without any."""
        return self._share(self.read, self.read + self.later) if self.later else 1.0

    def _share(self, start: int, stop: int) -> float:
        return float(self.held[start:stop].sum()) / ((stop * (stop + 1) - start * (start + 1)) / 2)


@dataclass(frozen=True)
class Footprint:
    """A method on one task. mean, full: over the samples that both have. budget: the smallest that keeps enough; its
    mean, footprint with its two parts (as in `Life`), and peak. If none does, it has the best mean, of equal
    means the smallest footprint, and `enough` is False. setting: what else tells it from methods of the same names.
    """

    model: str
    task: str
    context_length: int | None
    policy: str
    score: str | None
    variant: str | None
    layout: str | None
    schedule: str | None
    setting: str | None
    n: int
    full: float
    enough: bool
    budget: str
    mean: float
    footprint: float
    reading: float
    answering: float
    peak_bytes: float | None


def footprints(source: Source, warn: Warn, where: Where | None = None, least: float = 0.9) -> list[Footprint]:
    """Return one line per method and task, the smallest footprints first. least: the share of the full cache's mean to
    keep.

    A method is cells that differ in nothing but their budget, held against the full cache that was asked the same. Rows
    evicted from after every turn, and tasks whose rates tell nothing, are left out, and go to ``warn``. Raises as
    `load_table`, NothingSelected where no task has rows of the full cache to compare with, and CannotTell where all of
    those tell nothing.
    """
    counting = [row for row in load_table(source, _COLUMNS, warn, where).to_pylist() if _counts(row)]
    rows = [row for row in counting if _BY_TURN not in (row["schedule"] or "")]
    if len(rows) < len(counting):
        warn(
            f"{count_noun(len(counting) - len(rows), 'row')} left out: {_BY_TURN}, and rows do not say "
            "how long turns are"
        )
    describe = describer(source)
    experiments, asked = Experiments(("budget",), describe), Experiments((), describe, ASKED)
    lines: list[Footprint] = []
    extremes: list[str] = []
    for named, task in grouped(rows, lambda row: tuple(row[name] for name in _SETTING)).items():
        cells = _by_method(_paired(task, asked), experiments, least)
        every = [line for measured in cells.values() for line in measured]
        if reason := extreme(max((line.full for line in every), default=None), (line.mean for line in every)):
            extremes.append(f"{named[1]}: {reason}")
            continue
        for measured in cells.values():
            enough = [line for line in measured if line.enough]
            smallest = min(enough, key=lambda line: (line.footprint, *budget_key(line.budget)), default=None)
            lines.append(smallest or max(measured, key=lambda line: (line.mean, -line.footprint)))
    if extremes and not lines:
        raise CannotTell(f"no footprint: {'; '.join(extremes)}")
    for reason in extremes:
        warn(f"left out: {reason}")
    if not lines:
        raise NothingSelected("no selected task has rows with rates of policy=full and of another policy")
    return sorted(
        lines, key=lambda line: (*(str(getattr(line, name)) for name in _SETTING), not line.enough, line.footprint)
    )


def _counts(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a rate and the sizes that a footprint is made of."""
    sizes = ("prompt_tokens", "kept_tokens", "kept_fraction", "new_tokens")
    if row["value"] is None or not all(row[name] for name in sizes):
        return False
    return scale_of(row["metric"], [row["unit"]], [row["better"]], [row["value"]]).rate


def _paired(rows: Sequence[Mapping[str, Any]], asked: Experiments) -> list[tuple[Mapping[str, Any], float]]:
    """Return the rows of other policies, each with the value of the full cache that was asked the same."""
    cells = grouped(rows, lambda row: row["cell"])
    full = [cell for cell, members in cells.items() if members[0]["policy"] == "full"]
    pairs = []
    for cell, members in cells.items():
        if policy_of(members[0]["policy"]) != "full":
            partners = [row for partner in asked.partners(cell, full) for row in cells[partner]]
            values = {(row["seed"], row["sample"]): row["value"] for row in partners}
            both = [(row, values.get((row["seed"], row["sample"]))) for row in members]
            pairs += [(row, value) for row, value in both if value is not None]
    return pairs


def _by_method(
    pairs: Sequence[tuple[Mapping[str, Any], float]], experiments: Experiments, least: float
) -> dict[tuple[str, ...], list[Footprint]]:
    """Return the cells of each method, in the order of methods."""
    cells = grouped(pairs, lambda pair: pair[0]["cell"])
    names = {cell: tuple(members[0][0][name] or "" for name in _METHOD) for cell, members in cells.items()}
    words = experiments.told_apart(names)
    methods = grouped(cells, lambda cell: (*names[cell], words[cell] or ""))
    return {
        method: [_measured(cells[cell], method[-1], least) for cell in members]
        for method, members in sorted(methods.items())
    }


def _measured(pairs: Sequence[tuple[Mapping[str, Any], float]], setting: str, least: float) -> Footprint:
    """Return a cell: its rows, and the values of the full cache on the same questions."""
    rows = [row for row, _ in pairs]
    reference, mean = fmean(value for _, value in pairs), fmean(row["value"] for row in rows)
    lives = list(map(_life, rows))
    peaks = [peak for row, life in zip(rows, lives, strict=True) if (peak := _peak(row, life)) is not None]
    return Footprint(
        *(rows[0][name] for name in (*_SETTING, *_METHOD)),
        setting=setting or None,
        n=len(rows),
        full=reference,
        enough=mean >= least * reference,
        budget=rows[0]["budget"],
        mean=mean,
        **{name: fmean(getattr(life, name) for life in lives) for name in ("footprint", "reading", "answering")},
        peak_bytes=max(peaks, default=None),
    )


def _life(row: Mapping[str, Any]) -> Life:
    prompt_read, times, steps = tokens_read(row), copies(row), steps_of(row)
    later_tokens = row["prompt_tokens"] - prompt_read + row["new_tokens"]
    kind, budget, text = budget_key(row["budget"])
    if parse_size(text) is not None:  # bytes, of which a token takes so many in all layers
        budget = budget * prompt_read // (row["full_cache_bytes"] * times) if row["full_cache_bytes"] else 0
    block, every = steps.get("prefill_block"), steps.get("decode_every")
    limit = budget if kind == NUMBER and row["kept_fraction"] == 1 else 0
    if answer := steps.get("answer_budget"):
        limit = row["kept_tokens"] + answer
    return Life(prompt_read, row["kept_tokens"], later_tokens, block, every, limit, times)


def _peak(row: Mapping[str, Any], life: Life) -> float | None:
    """Bytes: a store that shares the full cache holds all of it."""
    if row["full_cache_bytes"] is None or row["peak_bytes"] is None:
        return None
    most = life.read if life.block is None else life.copies * min(life.read, life.kept + life.block)
    return max(row["full_cache_bytes"] * most / life.read, row["peak_bytes"])


def report_of(source: Source, warn: Warn, where: Where | None = None, at: float = 0.9) -> Report:
    """Return the report of a folder or a frame: one table per task for readers, all columns for programs. Raises as
    `footprints`, and UserError for a share `at` that is not between 0 and 1.
    """
    if not 0 < at < 1:
        raise UserError(f"at={at:g}: allowed: a number between 0 and 1, such as at=0.9")
    lines = footprints(source, warn, where, at)
    tasks = grouped(lines, lambda line: (line.model, line.task, line.context_length))
    tables = tuple(_table(*task, members, at) for task, members in tasks.items())
    records = [asdict(line) for line in lines]
    return Report(tables=tables, notes=(NOTE,), records=records)


def _table(model: str, task: str, tokens: int | None, lines: Sequence[Footprint], least: float) -> Table:
    length = "" if tokens is None else f", {tokens} tokens"
    title = f"model {model}, task {task}{length}: at least {least:.0%} of full"
    is_set = any(line.setting for line in lines)
    table_rows = [
        TableRow.of(
            (line.policy, line.score or "", line.schedule or "", *([line.setting or ""] if is_set else [])),
            (
                str(line.n),
                f"{100 * line.footprint:.1f} %" if line.enough else "none",
                f"{100 * line.reading:.0f} %",
                f"{100 * line.answering:.0f} %",
                line.budget if line.enough else f"best {line.budget}" if line.mean else "all 0",
                f"{100 * line.mean:.1f}",
                f"{100 * line.full:.1f}",
                "" if line.peak_bytes is None else size([line.peak_bytes]),
            ),
        )
        for line in lines
    ]
    heads = ("n", "footprint", "reading", "answering", "budget", "mean", "full", "peak")
    return Table.of(("policy", "score", "schedule", *(["setting"] if is_set else [])), heads, table_rows, title=title)
