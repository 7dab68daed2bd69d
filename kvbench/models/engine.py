"""Reading and generating with a cache that is ours. It knows nothing about tokenization, tasks or policies.

prefilled = engine.prefill(ids, window=16)          one pass over the prompt, shared by every cell
answers = engine.generate(prefilled, caches, ...)   many caches of that prompt decode as one batch
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache import KVCache
from kvbench.models import bridge
from kvbench.models.prefill import Prefill
from kvbench.models.tile import Tile


@dataclass
class Counters:
    """Work done so far: what proves that a prefill was shared."""

    prefills: int = 0
    tokens_prefilled: int = 0
    decode_steps: int = 0


@dataclass(frozen=True)
class Prefilled:
    """A prompt that has been read: its whole cache and the logits of its last position."""

    cache: KVCache
    logits: Float[Tensor, "vocabulary"]


@dataclass(frozen=True)
class Generation:
    """Tokens generated for one cell, the stop token included, and the smallest gap between the two best logits."""

    ids: tuple[int, ...]
    top2_margin: float
    allocated_bytes: int


@dataclass
class Engine:
    """A causal language model attached to the bridge.

    `block` tokens are read at a time, `tile` cells decode together; `sync` waits for the device before a clock is read.
    """

    model: Any
    block: int = 2048
    tile: int = 16
    sync: Callable[[], None] = lambda: None
    counters: Counters = field(default_factory=Counters)

    @property
    def device(self) -> torch.device:
        """Where token ids go."""
        return self.model.get_input_embeddings().weight.device

    @torch.inference_mode()
    def prefill(self, ids: Int[Tensor, "tokens"], window: int) -> Prefilled:
        """Read a prompt block by block, recording the newest `window` rows of every layer (0: nothing)."""
        if len(ids) == 0:
            raise ValueError("the prompt has no tokens")
        reader, logits = Prefill(len(ids), window), None
        for block in ids.to(self.device).split(self.block):
            logits = bridge.forward(self.model, block[None], reader.seen, reader)
            reader.finish_block(len(block))
        assert logits is not None
        self.counters.prefills += 1
        self.counters.tokens_prefilled += len(ids)
        return Prefilled(reader.freeze(), logits[0])

    @torch.inference_mode()
    def generate(
        self, prefilled: Prefilled, caches: Sequence[KVCache], max_new_tokens: int, stop: Collection[int]
    ) -> list[Generation]:
        """Greedy answers, one a cache, of at most `max_new_tokens` tokens; the first comes from the whole prompt."""
        tile = Tile(caches, self.tile, max_new_tokens)
        logits = prefilled.logits.expand(self.tile, -1)
        answers: list[list[int]] = [[] for _ in caches]
        margins = [float("inf")] * len(caches)
        open_cells = set(range(len(caches)))
        for step in range(max_new_tokens):
            best = logits.float().topk(2, dim=-1)
            tokens, gaps = best.indices[:, 0], (best.values[:, 0] - best.values[:, 1]).tolist()
            chosen = tokens.tolist()
            for cell in tuple(open_cells):
                answers[cell].append(chosen[cell])
                margins[cell] = min(margins[cell], gaps[cell])
                if chosen[cell] in stop:
                    open_cells.remove(cell)
            if not open_cells or step + 1 == max_new_tokens:
                break
            logits = self.read(tile, tokens[:, None])
        allocated = [cache.bytes_allocated + tile.tail_bytes for cache in caches]
        return [Generation(tuple(ids), gap, size) for ids, gap, size in zip(answers, margins, allocated, strict=True)]

    @torch.inference_mode()
    def read(self, tile: Tile, ids: Int[Tensor, "cells new"]) -> Float[Tensor, "cells vocabulary"]:
        """Read new tokens in every cell of a tile; logits of the last one."""
        logits = bridge.forward(self.model, ids, tile.seen + tile.used, tile)
        tile.finish(ids.shape[1])
        self.counters.decode_steps += 1
        return logits
