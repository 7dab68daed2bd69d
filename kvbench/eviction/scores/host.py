"""Scores that are made of another score, their host."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Scores
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class OverHost(Score):
    """Base class of scores that read what their host reads, and start from its raw scores.

    Raises UserError for a host that can be negative, that is of the same kind, or that reads hidden states.
    """

    host: Score = field(default_factory=Attention)
    __pydantic_config__: ClassVar[dict[str, Any]] = {"arbitrary_types_allowed": True}

    def __post_init__(self) -> None:
        if self.host.signed:
            why = "no weight that sums to one: it can be negative"
        elif isinstance(self.host, OverHost):
            why = "its own host" if type(self.host) is type(self) else f"a score over a host as {self.name} is"
        elif self.host.inputs.hidden_states:
            why = "made of hidden states, which only the score itself can read"
        else:
            return
        raise UserError(f"score.host={self.host.name} is {why}; choose another host of {self.name}, e.g. attn")

    @property
    def inputs(self) -> ScoreInputs:  # type: ignore[override]
        return self.host.inputs

    @property
    def group(self) -> Group:  # type: ignore[override]
        return self.host.group

    @property
    def least_rows(self) -> int:  # type: ignore[override]
        return self.host.least_rows

    @property
    def head_by_head(self) -> bool:  # type: ignore[override]
        return self.host.head_by_head

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        return self.host(layer, rows, reduce)
