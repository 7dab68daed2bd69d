"""When the cache is cut: the variable that changes published numbers most, and so part of every row."""

from dataclasses import dataclass
from typing import Literal

EvictAfter = Literal["prompt", "context"]


@dataclass(frozen=True)
class Schedule:
    """What is read before the cut.

    `evict_after=prompt` (query-aware): context and question are read whole, the question votes, then the cache is cut
    once. `evict_after=context` (query-agnostic): the context alone is read and cut; the question is read over what is
    left of it, at the positions it would have had.
    """

    evict_after: EvictAfter = "prompt"

    def __str__(self) -> str:
        return self.evict_after
