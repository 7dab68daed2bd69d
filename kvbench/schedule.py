"""When the cache is cut: the variable that changes published numbers most, and so part of every row."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """`evict_after=prompt`: context and question are read whole, the question votes, then the cache is cut once."""

    evict_after: Literal["prompt"] = "prompt"

    def __str__(self) -> str:
        return self.evict_after
