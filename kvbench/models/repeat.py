"""Passes over a frozen cache, and KVzip's passes, in which the model is prompted to repeat the context."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import AttentionParams, strongest
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.cache.recurrent import join_states
from kvbench.eviction.scores.score import AttentionCall, ContextRepetition
from kvbench.models import bridge
from kvbench.models.prefill import Attend, Heads, KVHeads
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import plain
from kvbench.support.errors import UserError

Record = Callable[[LayerCache, Tensor, Tensor, Tensor, AttentionParams], None]
"""Gets a layer of the cache, and the queries, keys and values [heads, new, head_dim] and the rule of a pass."""


@dataclass(frozen=True)
class RepeatPass:
    """One pass: `ids` repeat the tokens start to stop of the cache; its rows also see the first `head` tokens."""

    head: int
    start: int
    stop: int
    ids: tuple[int, ...]


def passes(tokenizer: Any, prompt: Prompt, repeat: ContextRepetition) -> Iterator[RepeatPass]:
    """Yield one pass per chunk of the prompt after its head: instruction, turn, the chunk itself.

    As in model/wrapper.py of KVzip's code: the instruction for a later chunk has the last tokens of the previous one.
    """
    ids, instruction = prompt.prefill, plain(tokenizer, repeat.prompt)
    head, turn = prompt.prefix_tokens if repeat.head else 0, prompt.turn if repeat.turn else ()
    for start in range(prompt.prefix_tokens, len(ids), repeat.chunk):
        stop = min(start + repeat.chunk, len(ids))
        if start > prompt.prefix_tokens:
            tail = ids[start - min(repeat.tail, repeat.chunk) : start]
            instruction = plain(tokenizer, repeat.then) + tail + plain(tokenizer, repeat.end)
        yield RepeatPass(head, start, stop, instruction + turn + ids[start:stop])


class FrozenAttentionCache:
    """The cache of tokens that attend to a frozen cache and, causally, to each other; none of them is cached."""

    alone: ClassVar[bool] = True

    def __init__(self, cache: KVCache, max_length: int | None, attend: Attend, record: Record) -> None:
        self._layers = {layer.index: layer for layer in cache.layers}
        self.recurrent = join_states([cache.recurrent])
        self._max_length, self._attend, self._record = max_length, attend, record

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        cached, rule = self._layers[layer], rule.within(self._max_length)
        self._record(cached, queries[0], keys[0], values[0], rule)
        every_key, every_value = (
            torch.cat((old, new[0]), dim=1) for old, new in zip(cached.dense, (keys, values), strict=True)
        )
        return self._attend(queries[0], every_key, every_value, rule)[None]


def repeated(
    model: Any,
    cache: KVCache,
    part: RepeatPass,
    repeat: ContextRepetition,
    max_length: int | None,
    attend: Attend,
    kernels: Kernels,
) -> dict[int, Float[Tensor, "heads columns"]]:
    """Run one pass: by layer, the largest weight of its rows for each column of its chunk.

    Rows attend to the full cache, as in the model; recorded weights have a softmax over head, chunk and pass only.
    """
    norms: dict[int, Tensor] = {}
    records: dict[int, Tensor] = {}

    def receive(call: AttentionCall) -> None:
        norms[call.module.layer_idx] = call.hidden[0].float().norm(dim=-1)

    def record(layer: LayerCache, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> None:
        if repeat.by_norm and layer.index not in norms:
            raise UserError(f"score kvzip_plus: the attention of layer {layer.index} does not show its input")
        if layer.evictable:
            head, chunk = layer.dense[0][:, : part.head], layer.dense[0][:, part.start : part.stop]
            columns = slice(part.head, part.head + part.stop - part.start)
            keys = torch.cat((head, chunk, keys), dim=1)
            divisors = norms.get(layer.index)
            records[layer.index] = strongest(queries, keys, columns, rule, repeat.softmax, kernels, divisors)

    frozen = FrozenAttentionCache(cache, max_length, attend, record)
    ids = torch.tensor([part.ids], device=model.get_input_embeddings().weight.device)
    with bridge.attention_calls(model, receive) if repeat.by_norm else nullcontext():
        bridge.forward(model, ids, cache.num_tokens, frozen)
    return records
