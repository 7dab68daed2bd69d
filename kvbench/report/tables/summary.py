"""One summary per cell: counts, mean with interval, measured sizes and times.

Cells are told apart by their hash, so that two settings, seeds or model weights are never averaged into one line.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from kvbench.records import Row
from kvbench.records.columns import table_of
from kvbench.records.row import CUT, LIMIT
from kvbench.report.acted import FULL, acted
from kvbench.report.acted import NEEDED as ACTED_FROM
from kvbench.report.held import NEEDED as HELD_FROM
from kvbench.report.held import held_bytes
from kvbench.report.stats.intervals import mean_interval, perplexity
from kvbench.report.stats.paired import NO_CONTEXT, scale_of, shown
from kvbench.support.grouped import grouped
from kvbench.support.quantity import THRESHOLD, parse_size

if TYPE_CHECKING:
    import pandas

Unit = Literal["questions", "contexts"]
"""What the mean of a cell is over: its questions, or their contexts, each with the mean of its questions (KVzip)."""
FRACTION, NUMBER, SCORE = range(3)
"""Kinds of budgets: a part of the prompt, a number of pairs or bytes, the least score of a kept pair."""


@dataclass(frozen=True, kw_only=True)
class SummaryColumns:
    """Columns of one cell over its samples, or over the samples of one question number, as programs read them.

    Means are over the ``n`` samples that have a value; missing is None.

    ``mean low high`` in the metric's own unit (rates 0..1; ``nll`` as perplexity, see `kvbench.report.stats.paired`),
    ``*_bytes`` in bytes, ``*_seconds`` in seconds per sample, ``new_tokens prompt_tokens kept_tokens`` in tokens
    per sample, ``kept_fraction`` as measured, 0..1; ``read_bytes index_bytes`` per token of an answer; ``held_bytes
    full_held_bytes`` as `kvbench.report.held` says. ``acted``: the share of the samples with a value in which the
    method acted, 0..1, among samples that say whether (`kvbench.report.acted`). ``errors`` counts failed samples,
    ``blanks`` those that have neither an error nor a number; both are in no mean.
    """

    model: str
    task: str
    context_length: int | None
    policy: str
    score: str | None
    budget: str
    n: int
    mean: float | None
    low: float | None
    high: float | None
    kept_fraction: float | None
    cache_bytes: float | None
    full_cache_bytes: float | None
    errors: int
    prefill_seconds: float | None
    evict_seconds: float | None
    decode_seconds: float | None
    new_tokens: float | None
    prompt_tokens: float | None
    metric: str | None
    variant: str | None
    layout: str | None
    schedule: str | None
    seed: int | None
    task_version: str | None
    cell: str
    kept_tokens: float | None
    read_bytes: float | None
    index_bytes: float | None
    blanks: int
    held_bytes: float | None
    full_held_bytes: float | None
    acted: float | None
    first_token_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Summary(SummaryColumns):
    """Columns, and further facts that reports need.

    ``question_number`` is blank in a summary of a whole cell. ``contexts``: how many different ones the ``n`` samples
    are about. ``variance / n`` is the variance of ``mean``, if samples are independent or the mean is over contexts.
    ``cut``: answers that ended within their reasoning. ``limited``: those that reached their longest length, of the
    ``ended`` ones that say why they ended. ``judged`` samples say whether the method acted, ``unjudged`` do not.
    ``full_there``: the mean of the full cache on the prompts in which it did, if it has all of them.
    """

    rate: bool  # print x100
    higher: bool  # more is better
    variance: float | None  # of the samples' values, over n - 1, or n times the mean's over contexts
    failures: Mapping[str, tuple[int, ...]]  # error text -> samples
    blank_samples: tuple[int, ...]
    question_number: int | None = None
    contexts: int | None = None
    cut: int = 0
    limited: int = 0
    ended: int = 0
    judged: int = 0
    unjudged: int = 0
    full_there: float | None = None


COLUMNS = tuple(column.name for column in fields(SummaryColumns))
_FIRST = (
    *("model", "task", "context_length", "policy", "score", "budget", "variant", "layout", "schedule", "seed"),
    *("task_version", "cell"),
)
MEANS = (
    *("kept_fraction", "kept_tokens", "cache_bytes", "full_cache_bytes", "prefill_seconds", "evict_seconds"),
    *("decode_seconds", "new_tokens", "prompt_tokens", "read_bytes", "index_bytes", "first_token_seconds"),
)
_CONTEXT = ("context_sha256", "prompt_sha256")
_VALUES = ("metric", "unit", "better", "value", "error", "reasoning", "ended")
NEEDED: tuple[str, ...] = tuple(
    dict.fromkeys((*_FIRST, *MEANS, *HELD_FROM, *ACTED_FROM, *_CONTEXT, "question_number", "sample", *_VALUES))
)
"""Columns of rows that a summary is made from."""


def summaries(
    rows: pa.Table | Iterable[Row], by_question: bool = False, over: Unit = "questions", triggered: bool = False
) -> list[Summary]:
    """Return one summary per cell, in the order of `sort_key`: the same for the same rows in any order.

    ``rows``: a table with the columns ``NEEDED``, or rows. ``by_question``: one for each question number of a cell.
    ``over``: what a mean is over; perplexities are over tokens either way. ``triggered``: of every cell but the full
    cache only the samples in which its method acted.
    """
    table: pa.Table = rows if isinstance(rows, pa.Table) else table_of(rows)
    if not table.num_rows:
        return []
    table = table.select(list(NEEDED))
    codes = table["cell"].combine_chunks().dictionary_encode().indices.to_numpy()
    if by_question:
        numbers = table["question_number"].fill_null(-1).to_numpy()
        codes = np.unique(np.stack((codes, numbers), axis=1), axis=0, return_inverse=True)[1].ravel()
    order = np.lexsort((table["sample"].to_numpy(), codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    labels = (*_FIRST, "question_number") if by_question else _FIRST
    first = table.select(list(labels)).take(order[starts]).to_pylist()
    metrics = table["metric"].combine_chunks().dictionary_encode(null_encoding="encode")
    names, metric = metrics.dictionary.to_pylist(), metrics.indices.to_numpy()[order]
    samples, values = table["sample"].to_numpy()[order], table["value"].to_numpy()[order]
    measured = {name: table[name].to_numpy()[order].astype(float) for name in MEANS}
    measured |= {name: numbers[order] for name, numbers in held_bytes(table).items()}
    reasoning, ended = (table[name].fill_null("").to_numpy()[order] for name in ("reasoning", "ended"))
    counted = {"cut": reasoning == CUT, "limited": ended == LIMIT, "ended": ended != ""}
    failed = table["error"].is_valid().to_numpy()[order]
    messages = dict(zip(np.flatnonzero(failed).tolist(), table["error"].take(order[failed]).to_pylist(), strict=True))
    good, context = np.isfinite(values), _contexts(table)[order]
    did_act, is_judged = (part[order] for part in acted(table))
    is_counted = good & (did_act | (table["policy"].to_numpy()[order] == FULL)) if triggered else good
    beside = _full_values(table)[order] if triggered else None
    declared = grouped(
        table.group_by(["metric", "unit", "better"]).aggregate([]).to_pylist(),
        lambda declaration: declaration["metric"],
    )
    scales = {
        name: scale_of(
            name,
            {declaration["unit"] for declaration in declared[name]},
            {declaration["better"] for declaration in declared[name]},
            values[good & (metric == code)],
        )
        for code, name in enumerate(names)
    }

    def summary(labels: Mapping[str, object], start: int, stop: int) -> Summary:
        members = slice(start, stop)
        valued, is_failed, judged = is_counted[members], failed[members], (good & is_judged)[members]
        name = next((names[code] for code in np.unique(metric[members]) if names[code] is not None), None)
        errors = grouped((np.flatnonzero(is_failed) + start).tolist(), messages.__getitem__)
        blank = samples[members][~good[members] & ~is_failed]
        scores = values[members][valued]
        mean = low = high = None
        variance = float(np.var(scores, ddof=1)) if len(scores) > 1 else None
        cluster = np.unique(context[members][valued], return_inverse=True)[1]
        if len(scores) and name == "nll":
            mean, low, high = perplexity(scores.tolist(), measured["new_tokens"][members][valued].tolist())
        elif len(scores) and over == "contexts":
            means = np.bincount(cluster, weights=scores) / np.bincount(cluster)
            mean, low, high = mean_interval(means.tolist(), scales[name].rate)
            variance = float(np.var(means, ddof=1)) * len(scores) / len(means) if len(means) > 1 else None
        elif len(scores):
            mean, low, high = mean_interval(scores.tolist(), scales[name].rate, cluster)
        return Summary(
            **labels,  # type: ignore[arg-type]
            **{column: _average(numbers[members][valued]) for column, numbers in measured.items()},  # type: ignore[arg-type]
            **{name: int(numbers[members].sum()) for name, numbers in counted.items()},
            acted=float(did_act[members][judged].mean()) if judged.any() else None,
            judged=int(judged.sum()),
            unjudged=int((good & ~is_judged)[members].sum()),
            full_there=None if beside is None or not len(scores) else _whole_mean(beside[members][valued]),
            n=len(scores),
            mean=mean,
            low=low,
            high=high,
            errors=int(is_failed.sum()),
            blanks=len(blank),
            metric=shown(name),
            rate=scales[name].rate,
            higher=scales[name].higher,
            variance=variance,
            failures={text: tuple(samples[places].tolist()) for text, places in errors.items()},
            blank_samples=tuple(blank.tolist()),
            contexts=int(cluster.max()) + 1 if len(cluster) else 0,
        )

    stops = [*starts[1:].tolist(), len(order)]
    return sorted((summary(*cell) for cell in zip(first, starts.tolist(), stops, strict=True)), key=sort_key)


def summary_frame(table: Iterable[Summary]) -> "pandas.DataFrame":
    """Summaries as a frame, columns as in ``COLUMNS``; whole numbers stay whole (``Int64``)."""
    import pandas  # late: it takes half a second, and only a table as Parquet is a frame

    table = list(table)
    frame = pandas.DataFrame({name: [getattr(line, name) for line in table] for name in COLUMNS})
    types = {field.name: field.type for field in fields(Summary)}
    kinds = {int: "Int64", int | None: "Int64", float | None: "float64"}
    return frame.astype({name: kinds[types[name]] for name in COLUMNS if types[name] in kinds})


def sort_key(line: Summary) -> tuple:
    """Model, task, length; the full cache first, then policies without a score, then by name; budgets by size."""
    setting = (line.model, line.task, line.context_length or 0, line.policy != "full", line.score is not None)
    method = (line.policy, line.score or "", budget_key(line.budget), line.variant or "", line.layout or "")
    return (*setting, *method, line.schedule or "", line.seed or 0, line.cell, line.question_number or 0)


def budget_key(budget: str) -> tuple[int, float, str]:
    """Order of budgets: what kind it is, its size, and how it was written.

    Fractions come first, then numbers of tokens or of bytes, then thresholds, from the highest: it keeps least.
    """
    if (in_bytes := parse_size(budget)) is not None:
        return NUMBER, float(in_bytes), budget
    try:
        if budget.startswith(THRESHOLD):
            return SCORE, -float(budget.removeprefix(THRESHOLD)), budget
        return FRACTION if any(mark in budget for mark in ".eE") else NUMBER, float(budget), budget
    except ValueError:
        return NUMBER, math.inf, budget


def _contexts(table: pa.Table) -> np.ndarray:
    """Return numbers [rows] of contexts, as `kvbench.report.stats.paired.context_of` tells them apart."""
    contexts, prompts = (table[name].combine_chunks().dictionary_encode() for name in _CONTEXT)
    empty = [place for place, text in enumerate(contexts.dictionary.to_pylist()) if text == NO_CONTEXT]
    context, prompt = (codes.indices.fill_null(-1).to_numpy() for codes in (contexts, prompts))
    context = np.where(np.isin(context, empty), -1, context)
    alone = len(contexts.dictionary) + len(prompts.dictionary) + table["sample"].to_numpy()
    return np.where(context >= 0, context, np.where(prompt >= 0, len(contexts.dictionary) + prompt, alone))


def _full_values(table: pa.Table) -> np.ndarray:
    """Of each row the value of the full cache on its prompt and sample; NaN where there is none."""
    keys = [*zip(*(table[name].to_pylist() for name in ("model", "task", "prompt_sha256", "sample")), strict=True)]
    of_full = zip(keys, table["policy"].to_pylist(), table["value"].to_pylist(), strict=True)
    values = {key: value for key, policy, value in of_full if policy == FULL and value is not None and key[2]}
    return np.array([values.get(key, math.nan) for key in keys], float)


def _whole_mean(numbers: np.ndarray) -> float | None:
    """Return the mean; None if a number is missing."""
    return None if np.isnan(numbers).any() else math.fsum(numbers.tolist()) / len(numbers)


def _average(numbers: np.ndarray) -> float | None:
    present = numbers[~np.isnan(numbers)].tolist()
    return math.fsum(present) / len(present) if present else None
