"""Numbers of a probe as a table: means over samples with 95 % intervals, grouped by the columns of ``--by``.

Heads, layers and other columns that do not group are averaged within a sample first: they are not independent, samples
are. Samples that share a context are one cluster. The interval is Student's below `FEW` clusters and Hesterberg's
expanded percentile bootstrap from there on (`kvbench.report.stats.intervals`), clipped to the range of the quantity.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.stats.intervals import FEW, RESAMPLES, expanded_percentile, student_of_clusters
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

SETTINGS = ("probe", "model", "task", "context_length", "policy", "score", "budget", "schedule", "seed")
"""Columns that always group."""
GROUPS = ("sample", "layer", "head", "window", "recent", "position", "quantity")
"""Columns that can group besides."""
_CLUSTER = ("sample", "context_sha256")
WIDTH = 120  # of text that does not go to a terminal
_POSITIVE = ("total", "lost", "error", "loss", "relative", "bound", "joint", "singles", "ratio")
_SHARES = ("recall", "lost_share", "best_share", "weight")
LIMITS = {
    **dict.fromkeys(_POSITIVE, (0.0, math.inf)),
    **dict.fromkeys(_SHARES, (0.0, 1.0)),
    "spearman": (-1.0, 1.0),
}
"""The range of each quantity; any number if it is not listed."""


Interval = tuple[float | None, float | None, float | None]
"""A mean and its limits; None where there is none."""


@dataclass(frozen=True)
class Mean:
    """A mean over ``n`` samples that have a number; in ``blanks`` samples the quantity is not defined.

    ``keys``: the values of the columns that group it, see `columns_of`.
    """

    keys: Mapping[str, Any]
    cell: str
    n: int
    blanks: int
    mean: float | None
    low: float | None
    high: float | None


def columns_of(by: Sequence[str]) -> list[str]:
    """Return the columns that group means: settings, those named, and the quantity."""
    return [*SETTINGS, *dict.fromkeys([*by, "quantity"])]


def means_of(numbers: pa.Table, by: Sequence[str], percent: bool = False) -> list[Mean]:
    """Return one mean per cell and value of the columns `by`, in the order of their first appearance.

    ``percent``: shares are x100, and their quantity says so.
    """
    for name in by:
        if name not in GROUPS:
            raise UserError(f"--by {name}: allowed: {', '.join(GROUPS)}")
    keys = ("cell", *columns_of(by))
    complete = numbers.filter(pa.array([error is None for error in numbers["error"].to_pylist()]))
    complete = complete.append_column("place", pa.array(range(len(complete)), pa.int64()))
    by_sample = complete.group_by(list(dict.fromkeys([*keys, *_CLUSTER])), use_threads=False)
    in_order = by_sample.aggregate([("value", "mean"), ("place", "min")]).sort_by("place_min")
    samples_in_order: list[dict[str, Any]] = in_order.to_pylist()
    means: list[Mean] = []
    for values, samples in grouped(samples_in_order, lambda row: tuple(row[key] for key in keys)).items():
        record: dict[str, Any] = dict(zip(keys, values, strict=True))
        defined = [sample for sample in samples if sample["value_mean"] is not None]
        cell, quantity = record.pop("cell"), record["quantity"]
        interval = _interval([(sample["context_sha256"], sample["value_mean"]) for sample in defined], quantity)
        if percent and quantity in _SHARES:
            mean, low, high = interval
            interval = _percent(mean), _percent(low), _percent(high)
            record["quantity"] = f"{quantity} (%)"
        means.append(Mean(record, cell, len(defined), len(samples) - len(defined), *interval))
    return means


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _interval(values: Sequence[tuple[str | None, float]], quantity: str) -> Interval:
    """Return the mean and its limits of (context, value). Values whose context is unknown are one cluster."""
    if not values:
        return None, None, None
    clusters = grouped(values, lambda pair: pair[0]).values()
    sums = np.array([math.fsum(value for _, value in members) for members in clusters])
    sizes = np.array([len(members) for members in clusters], dtype=float)
    mean = math.fsum(sums) / len(values)
    if len(sums) < 2:
        return mean, None, None
    limits = expanded_percentile(sums, sizes, RESAMPLES, 0) if len(sums) >= FEW else student_of_clusters(sums, sizes)
    least, most = LIMITS.get(quantity, (-math.inf, math.inf))
    return mean, max(float(limits[0]), least), min(float(limits[1]), most)


def report_of(numbers: pa.Table, by: Sequence[str], across: str, percent: bool = False, note: str = "") -> Report:
    """For readers: what all lines have in common and ``note`` above them, in the columns the values of ``across``,
    shares x100 with ``percent``. For programs: one line per mean, all columns.
    """
    names = columns_of(by)
    columns = ["cell", *names, "n", "blanks", "mean", "low", "high"]
    means = means_of(numbers, by)
    records = [{**vars(mean), **mean.keys} for mean in means]
    errors: list[str] = [error for error in numbers["error"].to_pylist() if error]
    failed = tuple(f"{errors.count(error)} failed: {error}" for error in dict.fromkeys(errors))
    means = means_of(numbers, by, percent) if percent else means
    return Report(
        tables=(_table(means, names, across, note),) if means else (),
        notes=failed if means else ("no numbers", *failed),
        records=[{name: record[name] for name in columns} for record in records],
        columns=columns,
        width=WIDTH,
    )


def _table(means: Sequence[Mean], names: Sequence[str], across: str, note: str) -> Table:
    """Columns with the same value in all lines stand in the title."""
    common = [name for name in names if name != across and len({mean.keys[name] for mean in means}) == 1]
    labels = [name for name in names if name not in common and name != across]
    heads = list(dict.fromkeys(mean.keys[across] for mean in means))
    if not any(isinstance(head, str) or head is None for head in heads):
        heads.sort()
    lines: dict[tuple[Any, ...], dict[Any, Mean]] = {}
    for mean in means:
        lines.setdefault((mean.cell, *(mean.keys[name] for name in labels)), {})[mean.keys[across]] = mean
    shared = [(name, means[0].keys[name]) for name in common if means[0].keys[name]]
    counts = {mean.n for mean in means}
    several = f" to {max(counts)}" if len(counts) > 1 else ""
    interval = " [95 % interval]" if any(mean.low is not None for mean in means) else ""
    return Table.of(
        labels,
        [head if isinstance(head, str) else f"{across} {head}" for head in heads],
        [
            TableRow(
                tuple("" if key is None else str(key) for key in keys),
                tuple(_figure(line.get(head)) for head in heads),
            )
            for (_, *keys), line in lines.items()
        ],
        title=", ".join(
            str(value) if name in ("probe", "quantity") else f"{name.replace('_', ' ')} {value}"
            for name, value in shared
        ),
        caption=(f"mean{interval} over n = {min(counts)}{several} samples", note),
    )


def _figure(mean: Mean | None) -> Figure:
    if mean is None or mean.mean is None:
        return Figure()
    low, high = ("" if end is None else f"{end:.3g}" for end in (mean.low, mean.high))
    return Figure(f"{mean.mean:.3g}", low, high)
