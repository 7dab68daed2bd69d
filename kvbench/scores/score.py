"""What every score offers, and what it may ask the reader to record."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from kvbench.cache import LayerCache, Window
from kvbench.shapes import Scores
from kvbench.shaping import Group

Reduce = Literal["sum", "mean", "max"]


@dataclass(frozen=True)
class Evidence:
    """What must be recorded while reading: the queries, outputs and log-sum-exp of the newest rows, or nothing."""

    window: bool


@runtime_checkable
class Score(Protocol):
    """The worth of every cached pair of a layer, higher is kept; computed in float32 whatever the model's dtype.

    `name` stands in rows and configs, `evidence` is what the score reads besides keys and values, `group` how the query
    heads of a KV head are merged when the policy does not say.
    """

    evidence: ClassVar[Evidence]
    group: ClassVar[Group]

    @property
    def name(self) -> str:
        """The name in rows and configs."""
        ...

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Raw scores of all columns of a dense layer, one row a query head.

        `rows` are the voting rows (None without evidence); `reduce` is how scores built on attention weights merge
        them, the others state their own reduction. A score that looks at keys only returns one row a KV head.
        """
        ...
