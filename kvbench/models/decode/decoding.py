"""How an engine decodes: its batches, and how the steps of their answers are launched. Extras may bring another way."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import CutCache, KVCache
from kvbench.models.decode.batch import DecodeBatch, RaggedBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.decode.next_token import Chosen, Sampler
from kvbench.support.named import named


class Decoding:
    """Decoding in plain PyTorch, step by step: the default, and the interface of members of the group `decoding`.

    bytes_held: memory that outlives batches, of which later ones make use again.
    """

    bytes_held: int = 0

    def free(self) -> bool:
        """Give up the memory that outlives batches; return whether there was any."""
        return False

    def fresh(self) -> "Decoding":
        """Return the same without memory of earlier batches."""
        return self

    def batch(self, caches: Iterable[KVCache | CutCache], cells: int, max_new_tokens: int) -> RaggedBatch:
        """Return a decode batch of `cells` cells, of which the first ones have these caches."""
        return RaggedBatch(caches, cells, max_new_tokens)

    def evicting_batch(self, caches: Sequence[EvictingCache], cells: int, max_new_tokens: int) -> EvictingBatch:
        """Return a batch of `cells` cells, of which the first ones have these caches, that evicts as it reads."""
        return EvictingBatch(caches, cells, max_new_tokens)

    def launched(self, batch: DecodeBatch, steps: int) -> str | None:
        """Return why the steps of an answer of so many tokens are launched one by one; None: `replayed` has them."""
        return "no extra replays them"

    def replayed(
        self,
        batch: Any,
        logits: Float[Tensor, "cells vocabulary"],
        steps: int,
        stop: Collection[int],
        at_least: int,
        choose: Sampler,
    ) -> Iterator[list[Chosen]]:
        """Yield the tokens of `steps` steps, several steps at a time; the first is chosen from `logits`.

        No `stop` token is chosen among the first `at_least`.
        """
        raise NotImplementedError


def decoding_of(engine: Any, cuda_graph: str = "auto") -> Decoding:
    """Return how an engine decodes: by the first member of `decoding` that takes the engine, else in plain PyTorch.

    engine: a `kvbench.models.engine.Engine`. cuda_graph: as of `model.cuda_graph`.
    """
    brought = (extra.load()(engine, cuda_graph) for extra in named("decoding").values())
    return next((decoding for decoding in brought if decoding is not None), Decoding())
