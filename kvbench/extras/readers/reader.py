"""The interface of a reader: eviction decides what is kept, a reader what of it a query reads.

A reader is a pure function of one query and the keys that are there: it holds nothing from one token to the next. Set
`name` and override `read`; `top.py` is the base of readers that rank pairs or pages, and the others are short.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.extras.readers.reading_batch import ReadingBatch
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.holder import Holder, shown
from kvbench.support.annotations import Help, Range, check_ranges
from kvbench.support.facts import ALL_READ, ANSWER, NO_LATER_EVICTION, PLAIN_COPY, UNTIMED, Claim, Fact

if TYPE_CHECKING:
    from kvbench.models.engine import Engine

Queries = Float[Tensor, "segments group head_dim"]
"""A query of each query head of a segment, times the scaling of its logits."""
Keys = Float[Tensor, "segments pairs head_dim"]
"""The keys that a query may read, oldest first: kept keys of the prompt, then keys of newer tokens up to its own."""
Read = Bool[Tensor, "segments group pairs"]
"""True where a query reads a pair."""
MOST = 2**31
OWN_CHOICE = Fact("pairs that a model chooses itself")


@dataclass(frozen=True)
class SparseReader(Holder, ABC):
    """Base class of readers: a copy of the kept pairs, of which a query reads a part. Raises UserError for settings out
    of range.
    """

    dense_layers: Annotated[int, Help("so many of the model's first layers read all they hold"), Range(0, MOST)] = 0
    question: Annotated[
        Literal["dense", "sparse"],
        Help("how the tokens of a question that is read after the eviction read; those of the answer are sparse"),
    ] = "dense"
    name: str = ""
    group: ClassVar[str] = "reader"
    idle: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ranges(self, "reader")

    def described(self) -> Mapping[str, Any]:
        return {"reader": {"name": self.name} | asdict(self)}

    def batch(self, held: list[Any], engine: "Engine", room: int, question_tokens: int) -> DecodeBatch:
        return ReadingBatch(shown(held), engine.max_batch, room, self, question_tokens)

    def claims(self) -> Iterator[Claim]:
        """Return what it needs of other settings: an answer over a plain copy of the kept pairs."""
        does = "reads a part of a cache"
        needs = dict.fromkeys((ANSWER, UNTIMED, PLAIN_COPY, NO_LATER_EVICTION), does)
        yield Claim(f"reader={self.name}", "reader=dense", needs, {ALL_READ: does, OWN_CHOICE: "chooses in its place"})

    @abstractmethod
    def read(self, queries: Queries, keys: Keys, prefix: int) -> Read:
        """Return the pairs that each query reads, at least one. prefix: how many keys are kept ones of the prompt."""

    def index_numbers(self, held: int, head_dim: int, group: int) -> int:
        """Numbers that are read to choose among `held` pairs of a cache head, for the `group` queries of a token."""
        return 0


@dataclass(frozen=True)
class Dense(SparseReader):
    """Every query reads all that is kept: attention as it is without a reader."""

    only_if_stated: ClassVar[tuple[str, ...]] = ("dense_layers", "question")
    name: str = "dense"
    idle: ClassVar[bool] = True

    def read(self, queries: Queries, keys: Keys, prefix: int) -> Read:
        return queries.new_ones(*queries.shape[:2], keys.shape[1]).bool()
