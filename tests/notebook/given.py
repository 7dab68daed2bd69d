"""A score and a policy as a user would give them: objects of Python."""

from dataclasses import dataclass
from typing import Any

from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score


@dataclass(frozen=True)
class Age(Score):
    """The newest or the oldest, as a user would write it."""

    sign: float = 1.0
    name: str = "age"
    signed = True

    def __call__(self, layer: Any, window: Any, reduce: Any) -> Any:
        return self.sign * layer.positions.view(layer.cache_heads, -1).float()


MINE = Policy("mine", window=8, recent=8)
