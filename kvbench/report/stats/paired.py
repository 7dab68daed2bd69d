"""What values of a metric are, and paired values as arrays: two per question, and which questions share a context.

Every metric is a rate in 0..1 (printed x100) with high values better, but for the names below. ``nll``, the mean
negative log-likelihood of a sample's tokens in nats, is shown as perplexity.
"""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.records import Row
from kvbench.records.row import RATE
from kvbench.support.errors import UserError

LOWER_IS_BETTER = frozenset({"perplexity", "nll", "bits_per_byte", "seconds_per_token"})
TIMED = "seconds_per_token"
"""A metric whose noise is that of the run and not of the prompt."""
NO_CONTEXT = hashlib.sha256(b"").hexdigest()


def is_rate(metric: str | None, values: Sequence[float] | np.ndarray) -> bool:
    """Whether values of this metric are shares in 0..1: of a plugin's metric they are, unless one is outside."""
    if RATE.fullmatch(metric or ""):
        return True
    numbers = np.asarray(values, float)
    return metric not in LOWER_IS_BETTER and bool(np.all((numbers >= 0.0) & (numbers <= 1.0)))


def higher_is_better(metric: str | None) -> bool:
    """Whether the larger of two values of this metric is the better one."""
    return metric not in LOWER_IS_BETTER


def shown(metric: str | None) -> str | None:
    """The name under which means of this metric are reported."""
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
        """The values of paired rows that both have one. Raises ValueError if their metrics cannot be pooled."""
        metrics = sorted({row.metric or "" for row, _ in rows})
        a, b = (np.array([pair[side].value for pair in rows], dtype=float) for side in (0, 1))
        rates = set()
        for name in metrics:
            values = [row.value or 0.0 for pair in rows for row in pair if (row.metric or "") == name]
            rates.add(is_rate(name or None, values))
        directions = {higher_is_better(name or None) for name in metrics}
        if len(rates) > 1 or len(directions) > 1 or (len(metrics) > 1 and not all(rates)):
            raise UserError(f"{', '.join(metrics)} have different units: their differences cannot be pooled")
        numbers: dict[Hashable, int] = {}
        cluster = np.array([numbers.setdefault(context_of(row), len(numbers)) for row, _ in rows], dtype=int)
        return cls(a, b, cluster, all(rates), directions != {False})

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
        """The same values with the better direction upwards."""
        return self if self.higher else Paired(-self.a, -self.b, self.cluster, self.rate, True)


def context_of(row: Row) -> Hashable:
    """What rows about the same context have in common: its hash, or the question if there is no context."""
    if row.context_sha256 in (None, NO_CONTEXT):
        return row.prompt_sha256 or (row.task, row.context_length, row.seed, row.sample)
    return row.context_sha256
