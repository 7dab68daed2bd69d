"""What every score offers, and what it may ask the reader to record."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from kvbench.cache.future_queries import FutureQueries
from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Ranked, Scores
from kvbench.eviction.pooling import Group, Weight

Reduce = Literal["sum", "mean", "max"]


@dataclass(frozen=True)
class Repeat:
    """Extra forward passes in which the model is told to repeat what it read, over the frozen cache.

    Each pass is told to repeat the next `chunk` tokens: first by the text `prompt`, later by the text `then`, the last
    `tail` tokens of the chunk before and the text `end`. softmax: whether attention weights or logits are recorded.
    turn: whether what a chat template puts before an answer stands before the chunk. head: whether weights are spread
    over the prompt's head too.
    """

    chunk: int
    tail: int
    prompt: str
    then: str
    softmax: bool
    end: str = ""
    turn: bool = True
    head: bool = True


@dataclass(frozen=True)
class ScoreInputs:
    """What must be recorded: the queries, outputs and log-sum-exp of the voting rows, a repetition, the queries that a
    horizon foretells, or nothing.
    """

    window: bool
    repeat: Repeat | None = None
    future_queries: FutureQueries | None = None


@runtime_checkable
class Score(Protocol):
    """The worth of every cached pair of a layer, higher is kept; computed in float32 whatever the model's dtype.

    A score inherits from this class and overrides what differs: raw scores (`__call__`) are shaped by the policy, with
    what `weigh` says next to pooling, then refined.

    signed: whether it may be negative, so that it cannot be read as a distribution over the tokens.
    by_head: whether it says the same of all pairs of a head, so that it can choose whole heads alone.
    apart: why scores of different heads do not compare, and what helps; None where they do.
    whole: whether shaping spans every column; else it ends before the newest protected tokens.
    least_rows: voting rows that it takes.
    """

    signed: ClassVar[bool] = False
    by_head: ClassVar[bool] = False
    apart: ClassVar[str | None] = None
    whole: ClassVar[bool] = False
    least_rows: ClassVar[int] = 1

    def check_model(self, layers: int, kv_heads: int, weights: str) -> None:
        """Raise ValueError for a model that the score is not made for, before anything is loaded.

        weights: a hash of them.
        """

    @property
    def name(self) -> str:
        """The name in rows and configs."""
        ...

    @property
    def inputs(self) -> ScoreInputs:
        """What the score reads besides keys and values."""
        ...

    @property
    def group(self) -> Group:
        """How the query heads of a KV head are merged when the policy does not say."""
        ...

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        """Raw scores of all columns of a dense layer, one row a query head.

        `rows` are the voting rows (None without evidence); `reduce` is how scores built on attention weights merge
        them, the others state their own reduction. A score that looks at keys only returns one row a KV head.
        """
        ...

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        """What multiplies the scores next to pooling; the newest `recent` tokens are not shaped. Usually nothing."""
        return None

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        """The score after shaping, one row a stored head, over every column that was shaped. Usually what it was.

        `layer` holds the columns of `shaped` from its first on, and stores KV heads.
        """
        return shaped
