"""KVzip's extra forward passes over a frozen cache, in which the model is prompted to repeat the context.

Tokens of a pass are not cached: a pass leaves only the record of how much its rows attended to each pair.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.scores.kvzip import strongest
from kvbench.eviction.scores.score import Repeat
from kvbench.models.bridge import within
from kvbench.models.prefill import Attend, Heads, KVHeads
from kvbench.models.prompts.prompt import Prompt, plain


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


class RepeatReader:
    """The reader of one pass. `records`: by layer, the largest weight of its rows for each column of its chunk.

    Rows attend to the full cache, as in the model; recorded weights have a softmax over head, chunk and pass only.
    """

    def __init__(
        self,
        cache: KVCache,
        repetition: RepeatPass,
        softmax: bool,
        max_length: int | None,
        attend: Attend,
        kernels: Kernels = "torch",
    ) -> None:
        self.records: dict[int, Float[Tensor, "heads columns"]] = {}
        self._layers = {layer.index: layer for layer in cache.layers}
        self._pass, self._softmax = repetition, softmax
        self._max_length, self._attend = max_length, attend
        self._kernels: Kernels = kernels

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """Attend to the cache and, causally, to the pass itself; record the weights of evictable layers."""
        rule, read, cached = within(rule, self._max_length), self._pass, self._layers[layer]
        cached_keys, cached_values = cached.dense
        if cached.evictable:
            chunk = torch.cat((cached_keys[:, : read.head], cached_keys[:, read.start : read.stop], keys[0]), dim=1)
            columns = slice(read.head, read.head + read.stop - read.start)
            self.records[layer] = strongest(queries[0], chunk, columns, rule, self._softmax, self._kernels)
        every = torch.cat((cached_keys, keys[0]), dim=1), torch.cat((cached_values, values[0]), dim=1)
        return self._attend(queries[0], *every, rule)[None]
