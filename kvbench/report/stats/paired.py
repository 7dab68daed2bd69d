"""Pairs as arrays: two values a question, and which questions share a context."""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.records import Row
from kvbench.report.stats.metric import higher_is_better, is_rate
from kvbench.support.errors import UserError

_NO_CONTEXT = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Paired:
    """n pairs of values, ``a`` and ``b``, and for each the number of its cluster, 0 to clusters - 1.

    Questions about one context stand and fall together: they are one cluster, and clusters are what is resampled and
    what signs are flipped of. ``rate``: the values live in 0..1. ``higher``: more is better.
    """

    a: np.ndarray
    b: np.ndarray
    cluster: np.ndarray
    rate: bool = True
    higher: bool = True

    def __post_init__(self) -> None:
        assert self.a.shape == self.b.shape == self.cluster.shape and self.a.ndim == 1

    @property
    def n(self) -> int:
        """Pairs."""
        return len(self.a)

    @property
    def difference(self) -> np.ndarray:
        """b - a of every pair; rounding of 0.3 - 0.1 - 0.2 and its like is taken away."""
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
        """Whether no two pairs share a context."""
        return self.clusters == self.n

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Sum of the differences and number of pairs of every cluster."""
        return (
            np.bincount(self.cluster, weights=self.difference, minlength=self.clusters),
            np.bincount(self.cluster, minlength=self.clusters).astype(float),
        )

    def gain(self) -> "Paired":
        """The same pairs with the better direction upwards."""
        return self if self.higher else Paired(-self.a, -self.b, self.cluster, self.rate, True)


def paired(pairs: Sequence[tuple[Row, Row]]) -> Paired:
    """The values of pairs of rows that both have one. Raises ValueError where the metrics cannot be pooled."""
    metrics = sorted({row.metric or "" for row, _ in pairs})
    a, b = (np.array([pair[side].value for pair in pairs], dtype=float) for side in (0, 1))
    rates = {name: is_rate(name or None, _of(pairs, name)) for name in metrics}
    directions = {higher_is_better(name or None) for name in metrics}
    if len(set(rates.values())) > 1 or len(directions) > 1 or (len(metrics) > 1 and not all(rates.values())):
        raise UserError(f"{', '.join(metrics)} have no unit in common: their differences cannot be pooled")
    numbers: dict[Hashable, int] = {}
    cluster = np.array([numbers.setdefault(context_of(row), len(numbers)) for row, _ in pairs], dtype=int)
    return Paired(a, b, cluster, all(rates.values()), directions != {False})


def context_of(row: Row) -> Hashable:
    """What rows about the same context have in common: its hash, or the question where there is no context."""
    if row.context_sha256 in (None, _NO_CONTEXT):
        return (row.task, row.context_length, row.seed, row.sample)
    return row.context_sha256


def _of(pairs: Sequence[tuple[Row, Row]], metric: str) -> list[float]:
    return [row.value for pair in pairs for row in pair if row.value is not None and (row.metric or "") == metric]
