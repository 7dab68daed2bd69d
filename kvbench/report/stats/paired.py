"""Scale of a metric, and paired values as arrays: two per question, and which questions share a context.

A row says in which unit its value is, and whether more is better. ``nll``, the mean negative log-likelihood of a
sample's tokens in nats, is shown as perplexity.
"""

import hashlib
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.records import Row
from kvbench.records.row import HIGHER, LOWER, SHARE
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

LOWER_METRICS = frozenset({"perplexity", "nll", "bits_per_byte", "seconds_per_token"})
"""Metrics of which less is better in rows that do not say it, and which are no shares there."""
TIMED = "seconds_per_token"
"""A metric whose noise comes from the run and not from the prompt."""
NO_CONTEXT = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Scale:
    """How values of a metric read. ``rate``: they lie in 0..1 and are printed x100. ``higher``: more is better."""

    rate: bool
    higher: bool


def scale_of(
    metric: str | None,
    units: Collection[str | None],
    better: Collection[str | None],
    values: Sequence[float] | np.ndarray,
) -> Scale:
    """Return the scale of a metric from units and directions of its rows, or from values where no row has any.

    Raises UserError for rows that contradict each other.
    """
    for column, named in (("unit", {*units} - {None}), ("better", {*better} - {None})):
        if len(named) > 1:
            raise UserError(f"rows of {metric} differ in {column}: {', '.join(sorted(map(str, named)))}: select some")
    higher = HIGHER in better or (LOWER not in better and metric not in LOWER_METRICS)
    if {*units} - {None}:
        return Scale(SHARE in units, higher)
    numbers = np.asarray(values, float)
    return Scale(metric not in LOWER_METRICS and bool(np.all((numbers >= 0.0) & (numbers <= 1.0))), higher)


def _scale_of_rows(rows: Sequence[Row]) -> Scale:
    """Return the scale of rows of one metric."""
    values = [row.value or 0.0 for row in rows]
    return scale_of(rows[0].metric, {row.unit for row in rows}, {row.better for row in rows}, values)


def common_scale(rows: Sequence[tuple[Row, Row]]) -> Scale:
    """Return the scale of all values of paired rows. Raises UserError if their metrics cannot be pooled."""
    metrics = sorted({row.metric or "" for row, _ in rows})
    of_metric = grouped((row for pair in rows for row in pair), lambda row: row.metric or "")
    scales = {_scale_of_rows(members) for members in of_metric.values()}
    if len(scales) > 1 or (len(metrics) > 1 and not all(scale.rate for scale in scales)):
        raise UserError(f"{', '.join(metrics)} have different units: their differences cannot be pooled")
    return next(iter(scales), Scale(rate=True, higher=True))


def shown(metric: str | None) -> str | None:
    """Return the name under which means of this metric are reported."""
    return "perplexity" if metric == "nll" else metric


@dataclass(frozen=True)
class Paired:
    """Values ``a[n]`` and ``b[n]`` of the same n questions, and ``cluster[n]``, numbers from 0 to clusters - 1.

    Questions about one context are not independent: they are one cluster. Clusters are resampled, and signs are flipped
    of whole clusters. ``rate``: the values lie in 0..1. ``higher``: more is better.
    """

    a: np.ndarray
    b: np.ndarray
    cluster: np.ndarray
    rate: bool = True
    higher: bool = True

    def __post_init__(self) -> None:
        assert self.a.shape == self.b.shape == self.cluster.shape and self.a.ndim == 1

    @classmethod
    def of(cls, rows: Sequence[tuple[Row, Row]]) -> "Paired":
        """Return the values of paired rows that both have one. Raises ValueError as `common_scale` does."""
        scale = common_scale(rows)
        a, b = (np.array([pair[side].value for pair in rows], dtype=float) for side in (0, 1))
        numbers: dict[Hashable, int] = {}
        cluster = np.array([numbers.setdefault(context_of(row), len(numbers)) for row, _ in rows], dtype=int)
        return cls(a, b, cluster, scale.rate, scale.higher)

    @property
    def n(self) -> int:
        """Questions."""
        return len(self.a)

    @property
    def difference(self) -> np.ndarray:
        """b - a of every question, without the rounding error of 0.3 - 0.1 - 0.2 and the like."""
        difference = self.b - self.a
        return np.where(np.abs(difference) < 1e-12 * np.maximum(1.0, np.abs(self.a)), 0.0, difference)

    @property
    def binary(self) -> bool:
        """Whether every answer is right (1) or wrong (0)."""
        return self.rate and all(bool(np.isin(side, (0.0, 1.0)).all()) for side in (self.a, self.b))

    @property
    def clusters(self) -> int:
        """Contexts."""
        return int(self.cluster.max()) + 1 if self.n else 0

    @property
    def independent(self) -> bool:
        """Whether no two questions share a context."""
        return self.clusters == self.n

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Sum of the differences and number of questions of every cluster."""
        return (
            np.bincount(self.cluster, weights=self.difference, minlength=self.clusters),
            np.bincount(self.cluster, minlength=self.clusters).astype(float),
        )

    def gain(self) -> "Paired":
        """Return the same values with the better direction upwards."""
        return self if self.higher else Paired(-self.a, -self.b, self.cluster, self.rate, True)


def context_of(row: Row) -> Hashable:
    """Return the context of a row: its hash, or the question if there is no context."""
    if row.context_sha256 in (None, NO_CONTEXT):
        return row.prompt_sha256 or (row.task, row.context_length, row.seed, row.sample)
    return row.context_sha256
