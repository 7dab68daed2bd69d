"""One sample as probes look at it: read once with everything in the cache, then looked at as often as it takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.cache.shapes import Ranked
from kvbench.eviction.evict import Decision
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import Score
from kvbench.models.cpu.projection import projection
from kvbench.models.decode.next_step import Step, next_step
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.probes.query import Query, at_decode, at_prompt
from kvbench.probes.removal import Output, removal_errors
from kvbench.run.evict_cell import Shared, eviction_of, ranked, repeated
from kvbench.run.make_rows import Reading
from kvbench.run.plan import Cell
from kvbench.support.errors import UserError

At = Literal["prompt", "decode"]
"""Which query is looked at: the last one of what was read before the cut, or that of the first decoded token."""

LOOKS: dict[At, Callable[[LayerCache, Step], Query]] = {"prompt": at_prompt, "decode": at_decode}


def check_at(at: str, setting: str) -> None:
    """Raise ValueError for a word that names no query."""
    if at not in get_args(At):
        raise UserError(f"{setting}={at} is not legal; legal: {', '.join(get_args(At))}")


@dataclass
class Scene:
    """A prompt that was read, and what follows from it. Nothing in it is changed by looking."""

    model: LoadedModel
    prompt: Prompt
    reading: Reading
    _errors: dict[tuple[int, int, Output], Ranked] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens that can be evicted: those read before the cut."""
        return self.shared.cache.num_tokens

    @cached_property
    def shared(self) -> Shared:
        """The cache that holds everything, with what scores found in it."""
        return Shared(self.reading.prefilled.cache, self.prompt)

    @cached_property
    def steps(self) -> dict[int, Step]:
        """The first decoded token, by layer."""
        return next_step(self.model.engine, self.reading.prefilled, self.prompt.question)

    @property
    def layers(self) -> tuple[LayerCache, ...]:
        """The layers that eviction could cut."""
        return self.shared.cache.evictable

    def evidence(self, score: Score) -> KVCache:
        """The cache with what the score reads in it."""
        return repeated(self.model, self.shared, score.inputs.repeat)[0]

    def query(self, layer: LayerCache, at: At) -> Query:
        """One query of a layer; not kept: in float64 that of every layer would be twice the cache."""
        return LOOKS[at](layer, self.steps[layer.index])

    def errors(self, layer: LayerCache, cache_heads: int, output: Output = "attention") -> Ranked:
        """The true eviction error of every pair, at the first decoded token."""
        key = (layer.index, cache_heads, output)
        if key not in self._errors:
            whole = self.projection(layer) if output == "layer" else None
            self._errors[key] = removal_errors(self.query(layer, "decode"), cache_heads, whole)
        return self._errors[key]

    def projection(self, layer: LayerCache) -> Float[Tensor, "hidden width"]:
        """What makes the output of a layer of those of its heads."""
        return projection(self.model.engine.model, layer.index, layer.query_heads * layer.keys.shape[1])

    def rank(self, cell: Cell) -> tuple[Ranking, ...]:
        """The candidates of every layer as the cell would rank them."""
        eviction = eviction_of(cell, self.prompt)
        return ranked(self.model, self.shared, eviction, self.evidence(cell.score))[0]

    def decide(self, cell: Cell) -> Decision:
        """What the cell would keep. Raises ValueError for a budget that cannot hold what is protected."""
        eviction, cache = eviction_of(cell, self.prompt), self.shared.cache
        eviction.check(cache)
        return eviction.decide(cache, None if eviction.keeps_all(cache) else self.rank(cell))
