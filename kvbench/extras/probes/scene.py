"""One sample for probes: prefilled once, nothing evicted, then measured as often as needed."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.cache.shapes import Ranked
from kvbench.eviction.evict import Decision
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import Score
from kvbench.extras.probes.next_step import Step, next_step
from kvbench.extras.probes.query import Output, Query, removal_errors
from kvbench.models.bridge import projection
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.cell import Cell
from kvbench.run.evict_cell import SharedPrefill, eviction_of, rankings_of, with_repetition
from kvbench.run.rows import TimedPrefill

At = Literal["prompt", "decode"]
"""The query that is measured: the last one read before the eviction; or the query of the first decoded token, which
attends to the context, a question behind it, and itself."""


@dataclass
class Scene:
    """A prefilled prompt and what is computed from it. Measuring changes nothing."""

    model: LoadedModel
    prompt: Prompt
    reading: TimedPrefill
    _errors: dict[tuple[int, int, Output], Ranked] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens that can be evicted: those read before the eviction."""
        return self.shared.cache.num_tokens

    @cached_property
    def shared(self) -> SharedPrefill:
        """The full cache and the rankings of scores on it."""
        return SharedPrefill(self.reading.prefilled.cache, self.prompt)

    @cached_property
    def steps(self) -> dict[int, Step]:
        """The first decoded token, by layer."""
        return next_step(self.model.engine, self.reading.prefilled, self.prompt.question)

    @property
    def layers(self) -> tuple[LayerCache, ...]:
        """The layers that can be evicted from."""
        return self.shared.cache.evictable

    def inputs(self, score: Score) -> KVCache:
        """Return the cache with the inputs that the score reads."""
        return with_repetition(self.model, self.shared, score.inputs.repeat)[0]

    def query(self, layer: LayerCache, at: At) -> Query:
        """Return one query of a layer. Not cached: in float64 the queries of all layers take twice the cache."""
        (keys, values), step = layer.dense, self.steps[layer.index]
        if at == "prompt":  # its own pair can be evicted like any other
            return Query(layer.observed(1).queries[:, -1], keys, values, step.rule, keys.shape[1])
        attended = torch.cat((keys, step.keys), dim=1), torch.cat((values, step.values), dim=1)
        return Query(step.query[:, 0], *attended, step.rule, keys.shape[1])

    def errors(self, layer: LayerCache, cache_heads: int, output: Output = "attention") -> Ranked:
        """Return the true eviction error of every pair, at the first decoded token."""
        key = (layer.index, cache_heads, output)
        if key not in self._errors:
            matrix = self.projection(layer) if output == "layer" else None
            self._errors[key] = removal_errors(self.query(layer, "decode"), cache_heads, matrix)
        return self._errors[key]

    def projection(self, layer: LayerCache) -> Float[Tensor, "hidden width"]:
        return projection(self.model.engine.model, layer.index, layer.query_heads * layer.keys.shape[1])

    def rank(self, cell: Cell) -> tuple[Ranking, ...]:
        """Return the candidates of every layer as the cell would rank them."""
        eviction = eviction_of(cell, self.prompt)
        return rankings_of(self.model, self.shared, eviction, self.inputs(cell.score))[0]

    def decide(self, cell: Cell) -> Decision:
        """Return the kept set of the cell. Raises UserError for a budget that cannot hold the protected tokens."""
        eviction, cache = eviction_of(cell, self.prompt), self.shared.cache
        eviction.check(cache)
        return eviction.decide(cache, None if eviction.keeps_all(cache) else self.rank(cell))
