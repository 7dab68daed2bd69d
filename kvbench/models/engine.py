"""The engine: prefills a prompt once and decodes many evicted caches of it together.

prefilled = engine.prefill(ids, windows={16})                          one pass over the prompt, shared by every cell
batch = engine.batch(caches, room=128)                                  smaller caches of that prompt as one batch
answers = engine.generate(prefilled, batch, stop)                      decoding of the batch, greedy by default

`kvbench.eviction` makes the smaller caches. Only `prefill_evicting` and `nll` evict inside a forward pass.
"""

import math
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.attention import fused
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import CutCache, KVCache
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.scores.score import AttentionCall, ContextRepetition, Projection, Score, Summed
from kvbench.models import bridge
from kvbench.models.batch_invariance import BatchInvariance, functions_of
from kvbench.models.decode.batch import BytesRead, DecodeBatch, RaggedBatch
from kvbench.models.decode.decoding import Decoding
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.decode.next_token import Chosen, Sampler, greedy
from kvbench.models.loading.architecture import sliding_windows
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.marks import Mark, mark
from kvbench.models.prefill import Attend, Prefill
from kvbench.models.repeat import RepeatPass, repeated
from kvbench.models.rope import LengthRope, QueryMoments, Rotation, rotations
from kvbench.support.errors import UserError

EvictorAfter = Callable[[int], IncrementalEviction]
"""The eviction that takes place after a number of tokens."""
NARROWED = 0.75
"""The part of the cells of a batch still running at which it is narrowed to them: copying their pairs takes less time
than a few steps of the others."""
STACKED = 1 / 64
"""The part of a GPU's memory that the keys of layers that lie in one array may take in float32: a score holds a few
copies of them.
"""
QUESTION_BLOCK = 64
"""Tokens of a question read at a time: the logits of every cell over its cache are in memory at once."""


@dataclass
class Counters:
    """Work done so far, and how often memory ran out.

    max_cells: cells that fitted when it last did. oom_at: the fewest tokens of a prompt for which it ran out, by
    tokens per pass (0: all) and whether all queries were recorded. room: bytes that were free before the first prompt.
    """

    prefills: int = 0
    tokens_prefilled: int = 0
    tokens_repeated: int = 0
    decode_steps: int = 0
    oom_splits: int = 0
    max_cells: int | None = None
    oom_at: dict[tuple[int, bool], float] = field(default_factory=dict)
    room: int | None = None


@dataclass(frozen=True)
class Prefilled:
    """A prompt after its prefill: its cache, the logits of its last position, the bytes of the full cache, and the
    seconds in it that the scores over all queries took.
    """

    cache: KVCache
    logits: Float[Tensor, "vocabulary"]
    full_bytes: int
    seconds: Mapping[Summed, float] = field(default_factory=dict)


@dataclass
class Generation:
    """The answer of a cell.

    ids: its tokens, the stop token included. top2_margin: the smallest gap between the two best logits. seconds: the
    time of each step divided by the cells still running in it. broken: NaN or infinite logits ended the answer.
    running: it has not ended.
    """

    ids: tuple[int, ...] = ()
    top2_margin: float = math.inf
    seconds: float = 0.0
    broken: bool = False
    running: bool = True

    def add(self, token: int, gap: float, seconds: float, stop: Collection[int]) -> None:
        """Append a token that leads by a `gap` of logits; a token of `stop` or a NaN or inf gap ends the answer."""
        self.seconds += seconds
        if not math.isfinite(gap):
            self.running, self.broken = False, True
            return
        self.ids += (token,)
        self.top2_margin = min(self.top2_margin, gap)
        self.running = token not in stop


@dataclass
class DecodedAnswer:
    """The answer of a cell to one question, or why it has none.

    tokens: read before it since the beginning of the prompt. peak_bytes, evictions: of the cell up to here. read:
    by its tokens, where that is known. nll: of an answer that was read instead of generated, in nats per token.
    """

    generation: Generation = field(default_factory=Generation)
    error: str | None = None
    tokens: int = 0
    peak_bytes: int = 0
    evictions: int = 0
    read: BytesRead | None = None
    nll: float | None = None


@dataclass
class Engine:
    """Runs a transformers model over kvbench's own KV caches: prefill, decoding and log-likelihood.

    prefill_chunk: tokens per prefill pass, unless another number is asked for. max_batch: cells of a decode batch.
    batch_invariance: rows of a pass over a batch; None: determined when the first batch is read. max_length: length of
    the longest sequence. attend: attention of the prefill. kernels: implementation of sums over window rows and of
    attention to kept prefixes. decoding: how batches are held and their steps launched. rope: set if the frequencies
    depend on the length; prompts are then read in one pass. determined: what steps found out about the model, by
    names of their choice.
    """

    model: Any
    prefill_chunk: int = 4096
    max_batch: int = ModelSpec.max_batch
    batch_invariance: BatchInvariance | None = None
    max_length: int | None = None
    attend: Attend = fused
    kernels: Kernels = "torch"
    decoding: Decoding = field(default_factory=Decoding)
    rope: LengthRope | None = None
    counters: Counters = field(default_factory=Counters)
    determined: dict[Hashable, Any] = field(default_factory=dict, init=False)

    @property
    def device(self) -> torch.device:
        """The device of token ids."""
        return self.model.get_input_embeddings().weight.device

    @cached_property
    def gpus(self) -> tuple[torch.device, ...]:
        """Every GPU that holds weights; several with a device map."""
        devices = dict.fromkeys(parameter.device for parameter in self.model.parameters())
        return tuple(device for device in devices if device.type == "cuda")

    def sync(self) -> None:
        """Wait for the GPUs, before time is taken."""
        for device in self.gpus:
            torch.cuda.synchronize(device)

    def mark(self) -> Mark:
        """Return a moment in the work of the model's devices, without a wait for them."""
        return mark(self.gpus)

    @torch.inference_mode()
    def prefill(
        self,
        ids: Int[Tensor, "tokens"],
        windows: Collection[int] = (),
        scores: Collection[Score] = (),
        prefill_chunk: int | None = None,
        summed: Collection[Summed] = (),
    ) -> Prefilled:
        """Read a prompt, `prefill_chunk` tokens in a pass, all of them if a score wants all hidden states at once.

        Records the newest rows of every layer for each number in `windows`, raw scores `summed` over all rows, and
        what else `scores` ask for, but for repetitions.

        Raises UserError for inputs that the model does not have, such as later queries if no rotation can be undone.
        """
        self._check_prompt(ids)
        recorded = (part for score in scores if score.inputs.hidden_states for part in score.recorded)
        hidden_scores = tuple(dict.fromkeys(recorded))
        at_once = any(score.inputs.hidden_states == "prompt" for score in hidden_scores)
        at_once = at_once or bridge.traits(self.model).starts_anew
        chunk = len(ids) if at_once else prefill_chunk or self.prefill_chunk
        if self.rope is not None:
            chunk = len(ids)
            if self.rope.kind == "dynamic":  # transformers keeps the longest length until a short sequence comes
                bridge.forward(self.model, ids[None, :1].to(self.device), 0, Prefill(1, ()))
        if names := sorted({score.name for score in scores if score.inputs.future_queries or score.inputs.queries}):
            self.check_rotation(f"score={','.join(names)}", "it cannot be undone: choose another score")
        turned = self.rotations if any(score.inputs.queries for score in scores) else {}
        requests = {future for score in scores if (future := score.inputs.future_queries)}
        requests = sorted(requests, key=lambda request: (request.skip, request.positions))
        matrices: set[Projection] = {name for score in scores for name in score.inputs.projections}

        def moments(layer: int) -> Sequence[QueryMoments]:
            return [QueryMoments(self.rotations[layer], request) for request in requests]

        def projections(layer: int, width: int) -> Mapping[str, Tensor]:
            return {name: bridge.projection(self.model, layer, width, name) for name in matrices}

        arguments = windows, self.max_length, self.attend, moments, self.kernels, projections, hidden_scores
        growing = Prefill(len(ids), *arguments, self._layers_together, summed)

        def receive(call: AttentionCall) -> None:
            rotation = turned.get(call.module.layer_idx)
            growing.receive(call._replace(unrotate=rotation.undo) if rotation else call)

        with bridge.attention_calls(self.model, receive) if hidden_scores else nullcontext():
            logits = self._read_prompt(ids, chunk, growing)
        cache = growing.freeze()
        return replace(self._prefilled(cache, logits, cache.bytes_held), seconds=growing.seconds)

    def _layers_together(self, layers_before: int, numbers: int) -> int:
        """Return how many layers lie in one array after `layers_before` evictable ones, with so many numbers in the
        keys of each: on one GPU, as many as a score may hold in float32.
        """
        if self.device.type != "cuda" or len(self.gpus) != 1:
            return 1
        windows = sliding_windows(self.model.config).values()
        layers = sum(window is None or window >= (self.max_length or math.inf) for window in windows)
        _, memory = torch.cuda.mem_get_info(self.device)
        return max(1, min(layers - layers_before, int(STACKED * memory) // (numbers * torch.float32.itemsize)))

    def _read_prompt(self, ids: Int[Tensor, "tokens"], chunk: int, growing: Prefill) -> Float[Tensor, "vocabulary"]:
        """Return the logits of the last token of a prompt that is read chunk by chunk."""
        logits = torch.empty(0)
        for part in ids.to(self.device).split(chunk):
            logits = bridge.forward(self.model, part[None], growing.num_tokens, growing)[0]
            growing.finish_block(len(part))
        return logits

    @torch.inference_mode()
    def prefill_evicting(self, ids: Int[Tensor, "tokens"], evictor: IncrementalEviction, block: int) -> Prefilled:
        """Read a prompt in blocks of `block` tokens and evict after each, so that later blocks attend to what is kept.

        Raises UserError for a model whose rotation depends on the length of a pass, as the next methods do.
        """
        return self.prefill_turns(ids, lambda tokens: evictor, [len(part) for part in ids.split(block)])

    @torch.inference_mode()
    def prefill_turns(
        self, ids: Int[Tensor, "tokens"], evictor_after: EvictorAfter, blocks: Sequence[int]
    ) -> Prefilled:
        """Read a prompt as `prefill_evicting` does, in blocks of these sizes, with the eviction that follows each."""
        self._check_block(max(blocks, default=1))
        self._check_prompt(ids)
        evictor, logits = evictor_after(blocks[0]), torch.empty(0)
        cache = replace(self.evicting_cache(evictor, 1), divides=evictor.divides)
        batch = self.decoding.evicting_batch([cache], 1, len(ids))
        for part in ids.to(self.device).split(list(blocks)):
            cache.evictor = evictor_after(cache.num_tokens + len(part))
            logits = self._pass(batch, part[None], batch.positions, 1)[0, -1]
            batch.check()
            batch.finish(len(part))
        batch.return_layers()
        return self._prefilled(cache.freeze(), logits, cache.full_bytes)

    def _prefilled(self, cache: KVCache, logits: Float[Tensor, "vocabulary"], full_bytes: int) -> Prefilled:
        self.counters.prefills += 1
        self.counters.tokens_prefilled += cache.num_tokens
        return Prefilled(cache, logits, full_bytes)

    @torch.inference_mode()
    def repeat(self, cache: KVCache, passes: Iterable[RepeatPass], repeat: ContextRepetition) -> KVCache:
        """Return the cache with attention recorded in passes in which the model repeats the context (KVzip)."""
        records = {layer.index: torch.zeros(layer.query_heads, cache.num_tokens) for layer in cache.evictable}
        for part in passes:
            self.check_length(cache.num_tokens, len(part.ids))
            measure = repeat.by_gradient or repeated
            weights = measure(self.model, cache, part, repeat, self.max_length, self.attend, self.kernels)
            for layer, record in weights.items():
                records[layer][:, part.start : part.stop] = record.cpu()
            self.counters.tokens_repeated += len(part.ids)
        grown = ({**layer.recordings, repeat: records[layer.index].to(layer.keys.device)} for layer in cache.evictable)
        layers = zip(cache.evictable, grown, strict=True)
        return cache.with_evictable([replace(layer, recordings=numbers) for layer, numbers in layers])

    def batch(self, caches: Iterable[KVCache | CutCache], room: int) -> RaggedBatch:
        """Return a decode batch of caches, with `room` for new tokens."""
        return self.decoding.batch(caches, self.max_batch, room)

    @torch.inference_mode()
    def generate(
        self,
        prefilled: Prefilled,
        batch: DecodeBatch,
        stop: Collection[int],
        at_least: int = 0,
        question: Int[Tensor, "tokens"] | None = None,
        choose: Sampler = greedy,
    ) -> list[Generation]:
        """Return answers of the active cells, until each has stopped or the batch has read its `max_new_tokens`.

        Without a `question`, the first token comes from the logits of the prefill; with one, each cell reads it first.
        No `stop` token is chosen among the first `at_least` tokens. Where tokens are not drawn, a batch that can narrow
        does so when a quarter of its cells have stopped.
        """
        clock, logits = time.perf_counter(), prefilled.logits.expand(batch.cells, -1)
        if question is not None:
            logits = self.read_question(batch, question)
        return self.decode(batch, logits, stop, at_least, choose, clock)

    @torch.inference_mode()
    def read_question(self, batch: DecodeBatch, question: Int[Tensor, "tokens"]) -> Float[Tensor, "rows vocabulary"]:
        """Read the same tokens in every cell; return the logits of the last one, for the active cells at least."""
        logits = torch.empty(0)
        for block in question.to(self.device).split(QUESTION_BLOCK):
            logits = self.read(batch, block.expand(batch.cells, -1))
        return logits

    @torch.inference_mode()
    def decode(
        self,
        batch: DecodeBatch,
        logits: Float[Tensor, "cells vocabulary"],
        stop: Collection[int],
        at_least: int = 0,
        choose: Sampler = greedy,
        clock: float | None = None,
    ) -> list[Generation]:
        """Generate from the logits of every cell, whose prompts may differ. clock: when the time of the first step
        began; None: now.
        """
        clock = time.perf_counter() if clock is None else clock
        answers = [Generation() for _ in range(batch.num_active)]
        for block in self.decode_steps(batch, logits, stop, at_least, choose):
            seconds, clock = (time.perf_counter() - clock) / len(block), time.perf_counter()
            for cell in batch.failures:
                answers[cell].running = False
            for chosen in block:
                running = [(row, cell) for row, cell in enumerate(batch.order) if answers[cell].running]
                for row, cell in running:
                    token, gap = chosen[row]
                    answers[cell].add(int(token), gap, seconds / len(running), stop)
                    if not answers[cell].running:
                        batch.close(cell)
            unfinished = [cell for cell in batch.order if answers[cell].running]
            if not unfinished:
                break
            if choose is greedy and len(unfinished) <= NARROWED * len(batch.order):
                batch.narrow(unfinished)
        return answers

    def decode_steps(
        self,
        batch: DecodeBatch,
        logits: Float[Tensor, "cells vocabulary"],
        stop: Collection[int],
        at_least: int,
        choose: Sampler,
    ) -> Iterator[list[Chosen]]:
        """Yield the tokens of each step, replayed some steps at a time; later ones are read on demand."""
        steps = batch.max_new_tokens - batch.num_new_tokens
        reason = self.decoding.launched(batch, steps)
        batch.stepped = reason and f"one by one: {reason}"
        if reason is None:
            before = batch.num_new_tokens
            yield from self.decoding.replayed(batch, logits, steps, stop, at_least, choose)
            self.counters.decode_steps += batch.num_new_tokens - before
            return
        forbidden = torch.tensor(sorted(stop), dtype=torch.long).to(logits.device, non_blocking=True)
        for step in range(steps):
            if step < at_least:
                logits = logits.index_fill(-1, forbidden, -math.inf)
            tokens, gaps = choose(logits, step)
            order = batch.order
            yield [torch.stack((tokens.double(), gaps), dim=1).tolist()]  # one wait for the device
            if batch.order != order:
                tokens = tokens[[order.index(cell) for cell in batch.order]]
            if step + 1 < steps:
                logits = self.read(batch, tokens[:, None])

    @torch.inference_mode()
    def nll(
        self, ids: Int[Tensor, "tokens"], caches: Sequence[EvictingCache], block: int = 1
    ) -> Float[Tensor, "cells targets"]:
        """Return -log p, in nats and float32 or wider, of every token but the first given those before it.

        Tokens follow those that the caches have read, and are read `block` at a time by at most `max_batch` caches.
        Raises UserError for a score that is not finite.
        """
        batch = self.decoding.evicting_batch(caches, self.max_batch, len(ids))
        passes = zip(self._evicting_passes(batch, ids[:-1], block), ids[1:].to(self.device).split(block), strict=True)
        losses = [
            torch.stack([_losses(cell, targets) for cell in logits[: batch.num_active]]) for logits, targets in passes
        ]
        return torch.cat(losses, dim=1) if losses else torch.empty(batch.num_active, 0)

    @torch.inference_mode()
    def read_silently(self, ids: Int[Tensor, "tokens"], caches: Sequence[EvictingCache], block: int = 1) -> None:
        """Read tokens as `nll` does, without their likelihood."""
        batch = self.decoding.evicting_batch(caches, self.max_batch, len(ids))
        for _ in self._evicting_passes(batch, ids, block, last=1):
            pass

    def _evicting_passes(
        self, batch: EvictingBatch, ids: Int[Tensor, "tokens"], block: int, last: int | None = None
    ) -> Iterator[Float[Tensor, "rows last vocabulary"]]:
        """Yield the logits of each pass over `block` tokens, as of `read_all`."""
        self._check_block(block)
        for part in ids.to(self.device).split(block):
            logits = self.read_all(batch, part.expand(batch.cells, -1), last)
            batch.check()
            yield logits
        batch.return_layers()

    @torch.inference_mode()
    def read(self, batch: DecodeBatch, ids: Int[Tensor, "cells new"]) -> Float[Tensor, "rows vocabulary"]:
        """Read new tokens in every cell; return the logits of the last one, for the active cells at least."""
        return self.read_all(batch, ids, last=1)[:, -1]

    def read_all(
        self, batch: DecodeBatch, ids: Int[Tensor, "cells new"], last: int | None = None
    ) -> Float[Tensor, "rows last vocabulary"]:
        """Read as `read` does; return the logits of the `last` newest tokens, None: of all new ones."""
        new = ids.shape[1]
        if new > 1 and bridge.traits(self.model).starts_anew:
            return torch.cat([self.read_all(batch, token) for token in ids.split(1, dim=1)], dim=1)[:, -(last or new) :]
        self.check_length(batch.num_tokens, batch.num_new_tokens + new)
        if self.batch_invariance is None:
            self.batch_invariance = functions_of(self.model)
        rows, last = self.batch_invariance.rows(batch.cells, batch.num_active, new), last or new
        ids, positions = ids[:rows].to(self.device), batch.positions[:rows]
        if len(ids) < rows:  # rows that only fill up the batch
            ids = torch.cat((ids, ids[:1].expand(rows - len(ids), -1)))
        positions += positions[:1] * (rows - len(positions))
        num_logits = self.batch_invariance.last_of(rows, new) if last == 1 else last
        logits = self._pass(batch, ids, positions, num_logits)
        batch.finish(new)
        self.counters.decode_steps += 1
        return logits[:, num_logits - last :]

    def _pass(
        self, batch: DecodeBatch, ids: Int[Tensor, "rows new"], positions: Sequence[int], last: int
    ) -> Float[Tensor, "rows last vocabulary"]:
        """Return the logits of a pass; the batch gets hidden states if it reads them."""
        recording = nullcontext()
        if isinstance(batch, EvictingBatch) and batch.reads_hidden:
            recording = bridge.attention_calls(self.model, batch.receive)
        with recording:
            return bridge.logits(self.model, ids, positions, batch, last)

    def evicting_cache(
        self, evictor: IncrementalEviction, every: int | None, cache: KVCache | None = None
    ) -> EvictingCache:
        """Return a cache of this model that evicts as it grows."""
        kind: Any = EvictingCache
        for step in evictor.eviction.policy.steps:
            kind = step.evicting(kind, self)
        return kind(evictor, every, cache, self.max_length, self.kernels)

    @cached_property
    def rotations(self) -> dict[int, Rotation]:
        """How each layer rotates queries and keys. Raises UserError if that cannot be undone."""
        return rotations(self.model)

    def check_length(self, prompt: int, later: int) -> None:
        """Raise UserError if `later` tokens cannot be read after a prompt of `prompt`."""
        if self.rope is not None:
            self.rope.check(prompt, later)

    def _check_block(self, block: int) -> None:
        if block > 1:
            self.check_rotation(f"schedule.prefill_block={block}", "use schedule.prefill_block=null")

    def check_rotation(self, setting: str, fix: str) -> None:
        """Raise UserError, naming a setting, if the rotation depends on the length of a pass."""
        if self.rope is not None:
            reason = f"the rotation of this model ({self.rope.kind}) depends on the length of the pass"
            raise UserError(f"{setting}: {reason}; {fix}")

    def _check_prompt(self, ids: Int[Tensor, "tokens"]) -> None:
        if len(ids) == 0:
            raise UserError("the prompt has no tokens")
        if (highest := int(ids.max())) >= (rows := len(self.model.get_input_embeddings().weight)):
            raise UserError(
                f"the prompt has token {highest}, but the model knows {rows}: give the tokenizer of this model"
            )


def _losses(logits: Float[Tensor, "new vocabulary"], targets: Int[Tensor, "new"]) -> Float[Tensor, "new"]:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return -wide.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]
