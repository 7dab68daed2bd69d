"""Rows to one summary a cell: counts, mean with interval, measured sizes and times.

Cells are told apart by their hash, so that two settings, seeds or model weights are never averaged into one line.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from kvbench.records import Row
from kvbench.report.interval import mean_interval
from kvbench.report.metric import is_rate

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One cell over its samples. Means are over the ``n`` samples that have a value; missing is None.

    ``mean low high`` in the metric's own unit (rates 0..1), ``*_bytes`` in bytes, ``*_seconds`` in seconds a sample,
    ``new_tokens prompt_tokens`` in tokens a sample, ``kept_fraction`` as measured, 0..1. ``errors`` counts the samples
    that failed; they are in no mean.
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
    rate: bool  # not a column: print x100
    failures: Mapping[str, tuple[int, ...]]  # not a column: error text -> samples


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Summary) if field.name not in ("rate", "failures"))


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """One summary a cell, in the order of `sort_key`: the same for the same rows in any order."""
    cells: dict[str, list[Row]] = {}
    metrics: dict[str | None, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.sample):
        cells.setdefault(row.cell, []).append(row)
        if row.value is not None:
            metrics.setdefault(row.metric, []).append(row.value)
    rates = {metric: is_rate(metric, values) for metric, values in metrics.items()}
    return sorted((_summary(rows, rates) for rows in cells.values()), key=sort_key)


def summarise(rows: Iterable[Row]) -> "pandas.DataFrame":
    """`summaries` as a frame, one line a cell, columns as in ``COLUMNS``; whole numbers stay whole (``Int64``)."""
    import pandas

    table = summaries(rows)
    frame = pandas.DataFrame({name: [getattr(line, name) for line in table] for name in COLUMNS})
    whole = ("context_length", "n", "errors", "seed")
    kinds = {name: "Int64" if name in whole else "float64" for name in COLUMNS if name in whole or _is_number(name)}
    return frame.astype(kinds)


def sort_key(line: Summary) -> tuple:
    """Model, task, length; the full cache first, then policies without a score, then by name; budgets by size."""
    asked = (line.model, line.task, line.context_length or 0, line.policy != "full", line.score is not None)
    more = (line.variant or "", line.layout or "", line.schedule or "", line.seed or 0, line.cell)
    return (*asked, line.policy, line.score or "", budget_key(line.budget), *more)


def budget_key(budget: str) -> tuple[bool, float, str]:
    """Order of budgets: fractions by size, then numbers of tokens by size."""
    try:
        return not any(mark in budget for mark in ".eE"), float(budget), budget
    except ValueError:
        return True, math.inf, budget


def _summary(rows: list[Row], rates: Mapping[str | None, bool]) -> Summary:
    first = rows[0]
    good = [row for row in rows if row.value is not None]
    metric = next((row.metric for row in rows if row.metric is not None), None)
    rate = rates.get(metric, True)
    mean, low, high = mean_interval([row.value for row in good if row.value is not None], rate) if good else (None,) * 3
    failures: dict[str, list[int]] = {}
    for row in rows:
        if row.error is not None:
            failures.setdefault(row.error, []).append(row.sample)

    def average(measure: Callable[[Row], float | None]) -> float | None:
        found = [number for row in good if (number := measure(row)) is not None]
        return math.fsum(found) / len(found) if found else None

    return Summary(
        model=first.model,
        task=first.task,
        context_length=first.context_length,
        policy=first.policy,
        score=first.score,
        budget=first.budget,
        n=len(good),
        mean=mean,
        low=low,
        high=high,
        kept_fraction=average(lambda row: row.kept_fraction),
        cache_bytes=average(lambda row: row.cache_bytes),
        full_cache_bytes=average(lambda row: row.full_cache_bytes),
        errors=sum(len(samples) for samples in failures.values()),
        prefill_seconds=average(lambda row: row.prefill_seconds),
        evict_seconds=average(lambda row: row.evict_seconds),
        decode_seconds=average(lambda row: row.decode_seconds),
        new_tokens=average(lambda row: row.new_tokens),
        prompt_tokens=average(lambda row: row.prompt_tokens),
        metric=metric,
        variant=first.variant,
        layout=first.layout,
        schedule=first.schedule,
        seed=first.seed,
        task_version=first.task_version,
        cell=first.cell,
        rate=rate,
        failures={text: tuple(samples) for text, samples in failures.items()},
    )


def _is_number(name: str) -> bool:
    return next(field.type for field in fields(Summary) if field.name == name) == (float | None)
