"""Passes over a frozen cache, and those of KVzip, in which the model is prompted to repeat the context."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache
from kvbench.cache.recurrent import join_states
from kvbench.eviction.scores.kvzip import strongest
from kvbench.eviction.scores.score import AttentionCall, Repeat
from kvbench.models.prefill import Attend, Heads, KVHeads
from kvbench.models.prompts.prompt import Prompt, plain
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class RepeatPass:
    """One pass: `ids` repeat the tokens start to stop of the cache; its rows also see the first `head` tokens."""

    head: int
    start: int
    stop: int
    ids: tuple[int, ...]


def passes(tokenizer: Any, prompt: Prompt, repeat: Repeat) -> Iterator[RepeatPass]:
    """One pass per chunk of the prompt after its head: instruction, turn, the chunk itself.

    As in model/wrapper.py of KVzip's code: the instruction for a later chunk has the last tokens of the previous one.
    """
    ids, instruction = prompt.context, plain(tokenizer, repeat.prompt)
    head, turn = prompt.head if repeat.head else 0, prompt.turn if repeat.turn else ()
    for start in range(prompt.head, len(ids), repeat.chunk):
        stop = min(start + repeat.chunk, len(ids))
        if start > prompt.head:
            tail = ids[start - min(repeat.tail, repeat.chunk) : start]
            instruction = plain(tokenizer, repeat.then) + tail + plain(tokenizer, repeat.end)
        yield RepeatPass(head, start, stop, instruction + turn + ids[start:stop])


class FrozenCacheReader:
    """A reader of tokens that follow a cache and attend to it and, causally, to each other; none of them is cached."""

    def __init__(self, cache: KVCache, max_length: int | None, attend: Attend) -> None:
        self._layers = {layer.index: layer for layer in cache.layers}
        self.recurrent = join_states([cache.recurrent])
        self._max_length, self._attend = max_length, attend

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """The outputs of the new tokens."""
        rule, (cached_keys, cached_values) = rule.within(self._max_length), self._layers[layer].dense
        self._record(layer, queries[0], keys[0], values[0], rule)
        every = torch.cat((cached_keys, keys[0]), dim=1), torch.cat((cached_values, values[0]), dim=1)
        return self._attend(queries[0], *every, rule)[None]

    @abstractmethod
    def _record(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: Rule) -> None: ...


class RepeatReader(FrozenCacheReader):
    """The reader of one pass. `records`: by layer, the largest weight of its rows for each column of its chunk.

    Rows attend to the full cache, as in the model; recorded weights have a softmax over head, chunk and pass only.
    """

    def __init__(
        self, cache: KVCache, part: RepeatPass, repeat: Repeat, max_length: int | None, attend: Attend, kernels: Kernels
    ) -> None:
        super().__init__(cache, max_length, attend)
        self.records: dict[int, Float[Tensor, "heads columns"]] = {}
        self._pass, self._repeat = part, repeat
        self._norms: tuple[int, Tensor] | None = None
        self._kernels: Kernels = kernels

    def receive(self, call: AttentionCall) -> None:
        """Take the hidden states that the attention of a layer is about to read."""
        self._norms = call.module.layer_idx, call.hidden[0].float().norm(dim=-1)

    def _record(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: Rule) -> None:
        read, cached, norms = self._pass, self._layers[layer], None
        if self._repeat.by_norm:
            if self._norms is None or self._norms[0] != layer:
                raise UserError(
                    f"score kvzip_plus: the attention of layer {layer} of this model does not show its input"
                )
            norms = self._norms[1]
        if cached.evictable:
            head, repeated = cached.dense[0][:, : read.head], cached.dense[0][:, read.start : read.stop]
            columns = slice(read.head, read.head + read.stop - read.start)
            chunk = torch.cat((head, repeated, keys), dim=1)
            self.records[layer] = strongest(queries, chunk, columns, rule, self._repeat.softmax, self._kernels, norms)
