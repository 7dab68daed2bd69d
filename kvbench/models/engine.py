"""Reading and generating with a cache that is ours. It knows nothing about tokenization, tasks or policies.

prefilled = engine.prefill(ids, windows={16})       one pass over the prompt, shared by every cell
tile = DecodeBatch(caches, engine.tile, room=128)          smaller caches of that prompt, laid out as one batch
answers = engine.generate(prefilled, tile, stop)    the batch decodes
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.attention import fused
from kvbench.cache.future_queries import FutureQueries
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.scores.score import Repeat
from kvbench.models import bridge
from kvbench.models.cpu.batch_invariance import BatchInvariance, functions_of
from kvbench.models.decode.batch import DecodeBatch
from kvbench.models.decode.evicting_cache import EvictingBatch, EvictingCache
from kvbench.models.decode.generation import Answering, Generation
from kvbench.models.decode.quantized_batch import QuantizedBatch
from kvbench.models.decode.shared_batch import SharedCacheBatch
from kvbench.models.prefill import Attend, Prefill
from kvbench.models.repeat import Pass, Repeating
from kvbench.models.rope.re_rotation import KeyReRotation, renumbering_of
from kvbench.models.rope.rope import LengthRope
from kvbench.models.rope.rotation import QueryMoments, rotations
from kvbench.support.errors import UserError

QUESTION_BLOCK = 64
"""Tokens of a question read at a time: every cell's logits over its whole cache stand in memory at once."""

AnyTile = DecodeBatch | EvictingBatch | SharedCacheBatch | QuantizedBatch
"""The readers of a batch of cells."""


@dataclass
class Counters:
    """Work done so far: what proves that a prefill was shared, and how often memory ran out.

    together: cells that fitted at a time when it did last, None where it never has.
    """

    prefills: int = 0
    tokens_prefilled: int = 0
    tokens_repeated: int = 0
    decode_steps: int = 0
    halved: int = 0
    together: int | None = None


@dataclass(frozen=True)
class Prefilled:
    """A prompt that has been read: its cache, the logits of its last position, the bytes of a cache that holds all."""

    cache: KVCache
    logits: Float[Tensor, "vocabulary"]
    full_bytes: int


@dataclass
class Engine:
    """A causal language model attached to the bridge.

    `block` tokens are read at a time, `tile` cells decode together; a pass has as many rows as
    `batch_invariance` says (None: found out when the first batch is read); no sequence is longer than `max_length`
    tokens;
    `attend` is how prompts are read; `kernels` what sums over voting rows and attends to kept prefixes; `rope` tells
    where frequencies depend on the length, so that prompts are read whole; `sync` waits for the device before a clock
    is read.
    """

    model: Any
    block: int = 4096
    tile: int = 16
    batch_invariance: BatchInvariance | None = None
    max_length: int | None = None
    attend: Attend = fused
    kernels: Kernels = "torch"
    rope: LengthRope | None = None
    sync: Callable[[], None] = lambda: None
    counters: Counters = field(default_factory=Counters)

    @property
    def device(self) -> torch.device:
        """Where token ids go."""
        return self.model.get_input_embeddings().weight.device

    def check_length(self, prompt: int, later: int) -> None:
        """Raise ValueError where `later` tokens cannot be read after a prompt of `prompt`."""
        if self.rope is not None:
            self.rope.check(prompt, later)

    @cached_property
    def re_rotation(self) -> KeyReRotation:
        """How the model rotates keys. Raises ValueError for one whose keys cannot be rotated anew."""
        if self.rope is not None:
            raise UserError(
                f"policy.positions=cache: the rotation of this model ({self.rope.kind}) depends on how much is read; "
                "use policy.positions=original"
            )
        return renumbering_of(self.model, self.max_length)

    def growing(
        self, stepping: IncrementalEviction, every: int | None, cache: KVCache | None = None, cells: int = 1
    ) -> EvictingCache:
        """A cache of this model that is cut as it grows, or that of several cells abreast."""
        renumbers = stepping.eviction.policy.positions == "cache"
        re_rotation = self.re_rotation if renumbers else None
        return EvictingCache(stepping, every, cache, self.max_length, re_rotation, self.kernels, cells=cells)

    @torch.inference_mode()
    def prefill(
        self, ids: Int[Tensor, "tokens"], windows: Collection[int] = (), future_queries: Collection[FutureQueries] = ()
    ) -> Prefilled:
        """Read a prompt block by block, recording the newest rows of every layer for each number in `windows` and the
        statistics of later queries for each of `future_queries`.

        Raises ValueError where later queries cannot be predicted because their rotation cannot be undone.
        """
        if len(ids) == 0:
            raise UserError("the prompt has no tokens")
        block = self.block
        if self.rope is not None:
            block = len(ids)
            if self.rope.kind == "dynamic":  # transformers remembers the longest sequence until it reads a short one
                bridge.forward(self.model, ids[None, :1].to(self.device), 0, Prefill(1, ()))
        moments = self._moments(future_queries)
        reader, logits = Prefill(len(ids), windows, self.max_length, self.attend, moments, self.kernels), None
        for part in ids.to(self.device).split(block):
            logits = bridge.forward(self.model, part[None], reader.num_tokens, reader)
            reader.finish_block(len(part))
        assert logits is not None
        self.counters.prefills += 1
        self.counters.tokens_prefilled += len(ids)
        cache = reader.freeze()
        return Prefilled(cache, logits[0], cache.bytes_held)

    def _moments(self, future_queries: Collection[FutureQueries]) -> Callable[[int], Sequence[QueryMoments]]:
        if not future_queries:
            return lambda layer: ()
        if self.rope is not None:
            raise UserError(
                f"the rotation of this model ({self.rope.kind}) depends on how much is read: later queries, "
                "which the score expected_attention needs, cannot be predicted"
            )
        by_layer, wanted = rotations(self.model), sorted(future_queries, key=lambda one: (one.skip, one.positions))
        return lambda layer: [QueryMoments(by_layer[layer], request) for request in wanted]

    @torch.inference_mode()
    def prefill_evicting(self, ids: Int[Tensor, "tokens"], stepping: IncrementalEviction, block: int) -> Prefilled:
        """Read a prompt in blocks of `block` tokens and cut after each, so that later blocks see what is left.

        The cache that comes out holds no more than the capacity of `stepping` and goes on from there. Raises ValueError
        for a model whose rotation depends on how much is read at once.
        """
        self._check_block(block)
        if len(ids) == 0:
            raise UserError("the prompt has no tokens")
        growing, logits = self.growing(stepping, 1), None
        tile = EvictingBatch([growing], cells=1, room=len(ids))
        for part in ids.to(self.device).split(block):
            logits = bridge.forward(self.model, part[None], tile.positions, tile)
            tile.check()
            tile.finish(len(part))
        assert logits is not None
        self.counters.prefills += 1
        self.counters.tokens_prefilled += len(ids)
        return Prefilled(growing.freeze(), logits[0], growing.read_bytes)

    @torch.inference_mode()
    def repeat(self, cache: KVCache, told: Iterable[Pass], repeat: Repeat) -> KVCache:
        """The same cache, frozen as it is, with the record of passes in which the model repeats it.

        Tokens of a pass stand behind what was read and are forgotten with it. Raises ValueError for a model whose
        rotation depends on how much was read.
        """
        records = {layer.index: torch.zeros(layer.query_heads, cache.num_tokens) for layer in cache.evictable}
        for one in told:
            self.check_length(cache.num_tokens, len(one.ids))
            reader = Repeating(cache, one, repeat.softmax, self.max_length, self.attend, self.kernels)
            bridge.forward(self.model, torch.tensor([one.ids], device=self.device), cache.num_tokens, reader)
            for layer, record in reader.records.items():
                records[layer][:, one.start : one.stop] = record.cpu()
            self.counters.tokens_repeated += len(one.ids)
        layers = [
            replace(layer, probed={**layer.probed, repeat: records[layer.index].to(layer.keys.device)})
            for layer in cache.evictable
        ]
        return cache.with_evictable(layers)

    @torch.inference_mode()
    def nll(
        self, ids: Int[Tensor, "tokens"], growing: Sequence[EvictingCache], block: int = 1
    ) -> Float[Tensor, "cells targets"]:
        """Negative log-likelihood, in nats and float32 or wider, of every token but the first given those before it.

        Tokens are fed `block` at a time to at most a tile of caches, each of which is cut as it grows. They go on from
        the tokens that they have seen, none at first. Raises ValueError for a score that is not finite, and for blocks
        of a model whose rotation depends on how much is read at once.
        """
        self._check_block(block)
        tile, ids = EvictingBatch(growing, self.tile, room=len(ids)), ids.to(self.device)
        found = []
        for part, targets in zip(ids[:-1].split(block), ids[1:].split(block), strict=True):
            logits = self.read_all(tile, part.expand(tile.cells, -1))
            tile.check()
            found.append(torch.stack([_losses(one, targets) for one in logits[: tile.real]]))
        return torch.cat(found, dim=1) if found else torch.empty(tile.real, 0)

    @torch.inference_mode()
    def give(self, ids: Int[Tensor, "tokens"], growing: Sequence[EvictingCache], block: int = 1) -> None:
        """Read tokens of which nothing is asked, as `nll` does. Raises ValueError where that does."""
        self._check_block(block)
        tile = EvictingBatch(growing, self.tile, room=len(ids))
        for part in ids.to(self.device).split(block):
            self.read(tile, part.expand(tile.cells, -1))
            tile.check()

    @torch.inference_mode()
    def generate(
        self,
        prefilled: Prefilled,
        tile: AnyTile,
        stop: Collection[int],
        at_least: int = 0,
        question: Int[Tensor, "tokens"] | None = None,
    ) -> list[Generation]:
        """Greedy answers of the tile's cells, as long as the tile has room.

        The first token is the whole prompt's; where there is a `question`, each cell reads it first and begins its own
        answer. No `stop` token is chosen among the first `at_least` tokens. A cell that has stopped stays in the batch
        unread, so that matrix shapes do not change under the others; so does one of the tile's `failures`.
        """
        clock = time.perf_counter()
        logits = prefilled.logits.expand(tile.cells, -1)
        for block in () if question is None else question.to(self.device).split(QUESTION_BLOCK):
            logits = self.read(tile, block.expand(tile.cells, -1))
        answers = [Answering() for _ in range(tile.real)]
        room = tile.room - tile.used
        for step in range(room):
            if step < at_least:
                logits = logits.index_fill(
                    -1, torch.tensor(sorted(stop), dtype=torch.long, device=logits.device), -math.inf
                )
            tokens = logits.argmax(dim=-1)
            first, second = logits.topk(2, dim=-1).values.double().unbind(dim=-1)
            found = list(zip(tokens.tolist(), (first - second).tolist(), strict=True))
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            running = [answer for answer in answers if answer.running]
            for cell, (answer, (token, gap)) in enumerate(zip(answers, found, strict=False)):
                if answer.running:
                    answer.add(token, gap, seconds / len(running), stop)
                    if not answer.running:
                        tile.close(cell)
            if step + 1 == room or not any(answer.running for answer in answers):
                break
            logits = self.read(tile, tokens[:, None])
            for cell in tile.failures:
                answers[cell].running = False
        return [answer.finished() for answer in answers]

    @torch.inference_mode()
    def read(self, tile: AnyTile, ids: Int[Tensor, "cells new"]) -> Float[Tensor, "rows vocabulary"]:
        """Read new tokens in every cell of a tile; logits of the last one, for the tile's real cells at least."""
        return self.read_all(tile, ids, last=1)[:, -1]

    def read_all(
        self, tile: AnyTile, ids: Int[Tensor, "cells new"], last: int | None = None
    ) -> Float[Tensor, "rows last vocabulary"]:
        """`read`, with the logits of the `last` newest tokens; None: of all that are new."""
        self.check_length(tile.num_tokens, tile.used + ids.shape[1])
        last = ids.shape[1] if last is None else last
        new = ids.shape[1]
        if self.batch_invariance is None:
            self.batch_invariance = functions_of(self.model)
        rows = self.batch_invariance.rows(tile.cells, tile.real, new)
        ids, positions = ids[:rows].to(self.device), tile.positions[:rows]
        if len(ids) < rows:  # rows that nobody asks for
            ids = torch.cat((ids, ids[:1].expand(rows - len(ids), -1)))
        positions += positions[:1] * (rows - len(positions))
        told = self.batch_invariance.last_of(rows, new) if last == 1 else last
        logits = bridge.logits(self.model, ids, positions, tile, told)
        tile.finish(new)
        self.counters.decode_steps += 1
        return logits[:, told - last :]

    def _check_block(self, block: int) -> None:
        if self.rope is not None and block > 1:
            raise UserError(
                f"schedule.prefill_block={block}: the rotation of this model ({self.rope.kind}) depends on how much is "
                "read at once; use schedule.prefill_block=null"
            )


def _losses(logits: Float[Tensor, "new vocabulary"], targets: Int[Tensor, "new"]) -> Float[Tensor, "new"]:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return -wide.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]
