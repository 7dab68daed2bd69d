"""Presses without kvpress, for tests of the adapter: classes with a method `score`, as others publish them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Norms:
    """The negative norm of keys."""

    compression_ratio: float = 0.0
    scale: float = 1.0

    def score(
        self, module: Any, hidden_states: Tensor | None, keys: Tensor, values: Tensor, attentions: None, kwargs: Any
    ) -> Tensor:
        """As kvpress calls it: [1, KV heads, tokens]."""
        return -self.scale * keys.float().norm(dim=-1)


@dataclass
class Watching(Norms):
    """Records what it is given."""

    seen: list[dict[str, Any]] = field(default_factory=list)

    def score(self, *given: Any) -> Tensor:
        names = ("module", "hidden", "keys", "values", "attentions", "kwargs")
        rotary = getattr(given[0], "rotary_emb", None)
        SEEN.append(dict(zip(names, given, strict=True)) | {"rotary": rotary, "ratio": self.compression_ratio})
        return super().score(*given)


SEEN: list[dict[str, Any]] = []


class Positional(Norms):
    """Another shape."""

    def score(self, *given: Any) -> Tensor:
        return super().score(*given)[0]


class Endless(Norms):
    """NaN."""

    def score(self, *given: Any) -> Tensor:
        return super().score(*given) * torch.nan


class Changing(Norms):
    """Writes into the values that it was given."""

    def score(self, *given: Any) -> Tensor:
        given[3][0, 0, 0] += 1
        return super().score(*given)


class Failing(Norms):
    """An error of its own, and an attribute that it leaves on the module."""

    def score(self, *given: Any) -> Tensor:
        given[0].masked_key_indices = 1
        raise KeyError("cache_position")


@dataclass
class Within:
    """Another press with its sign turned, which refuses a ratio."""

    press: Any
    compression_ratio: float = 0.0

    def score(self, *given: Any) -> Tensor:
        """The negative score of the other."""
        return -self.press.score(*given)
