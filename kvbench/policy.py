"""An eviction policy of the literature as data: who votes, how scores are shaped, what is protected, how it splits."""

from dataclasses import dataclass, field
from typing import Literal

from kvbench.allocation.heads import HeadAllocation, UniformHeads
from kvbench.allocation.layers import LayerAllocation, UniformLayers
from kvbench.scores.score import Group, Reduce
from kvbench.shaping import Pool, Step


@dataclass(frozen=True)
class Policy:
    """Everything about a method but its score and its budget. Field names are those of the golden cases.

    window: newest queries that vote, at most the prompt. reduce: how attention weights of the voting rows merge.
    pool, group, order: see `kvbench.shaping`; `group=None` takes the score's own. sink, recent: first and newest tokens
    that always stay, inside the budget. layout: `kv_heads` stores what the model stores, `query_heads` repeats every
    pair for each query head, as the published code of SnapKV and OBCache does. takes: what the policy can be crossed
    with; one that takes no budget keeps everything, one that takes no score brings its own.

    Raises ValueError for values that contradict each other.
    """

    name: str
    window: int = 16
    reduce: Reduce = "sum"
    pool: Pool | None = None
    group: Group | None = None
    order: tuple[Step, Step] = ("pool", "group")
    sink: int = 0
    recent: int = 0
    heads: HeadAllocation = field(default_factory=UniformHeads)
    layers: LayerAllocation = field(default_factory=UniformLayers)
    variant: Literal["paper", "official"] = "paper"
    layout: Literal["kv_heads", "query_heads"] = "kv_heads"
    takes: tuple[Literal["score", "budget"], ...] = ("score", "budget")

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"policy.window={self.window}: at least one query must vote, e.g. 16")
        for name in ("sink", "recent"):
            if getattr(self, name) < 0:
                raise ValueError(f"policy.{name}={getattr(self, name)}: 0 or more tokens can be protected")
        if set(self.order) != {"pool", "group"}:
            raise ValueError(f"policy.order={list(self.order)}: legal are [pool,group] and [group,pool]")
        if self.group == "none" and self.layout == "kv_heads":
            raise ValueError("policy.group=none keeps one cache per query head: add policy.layout=query_heads")
        if self.group not in (None, "none") and self.layout == "query_heads":
            raise ValueError(f"policy.group={self.group} merges query heads: layout=query_heads goes with group=none")

    @property
    def protected(self) -> int:
        """Tokens that always stay."""
        return self.sink + self.recent

    def group_of(self, default: Group) -> Group:
        """The reduction over query heads, given the score's default."""
        return "none" if self.layout == "query_heads" else self.group or default
