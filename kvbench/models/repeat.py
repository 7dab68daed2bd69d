"""Telling a model to repeat what it read, over a frozen cache: the extra forward passes of KVzip.

What is read here is never cached: a pass leaves nothing but the record of how much its rows needed each pair.
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
from kvbench.models.prefill import Attend, Heads, KVHeads, within
from kvbench.models.prompts.prompt import Prompt, plain


@dataclass(frozen=True)
class Pass:
    """The tokens of one pass, which repeat the columns start to stop of the cache; rows see the first `head` too."""

    head: int
    start: int
    stop: int
    ids: tuple[int, ...]


def passes(tokenizer: Any, prompt: Prompt, repeat: Repeat) -> Iterator[Pass]:
    """One pass for each chunk of what was read behind the prompt's head: instruction, turn, the chunk itself.

    As model/wrapper.py of KVzip's code: a later chunk is announced by the last tokens of the one before.
    """
    read, begun = prompt.context, plain(tokenizer, repeat.prompt)
    seen, turn = prompt.head if repeat.head else 0, prompt.turn if repeat.turn else ()
    for start in range(prompt.head, len(read), repeat.chunk):
        stop = min(start + repeat.chunk, len(read))
        if start > prompt.head:
            tail = read[start - min(repeat.tail, repeat.chunk) : start]
            begun = plain(tokenizer, repeat.then) + tail + plain(tokenizer, repeat.end)
        yield Pass(seen, start, stop, begun + turn + read[start:stop])


class Repeating:
    """The reader of one pass. `records` are by layer: what the rows of the pass gave to the columns of its chunk.

    Rows attend to the whole cache, as the model would; weights are recorded as if only head, chunk and pass were there.
    """

    def __init__(
        self,
        cache: KVCache,
        told: Pass,
        softmax: bool,
        max_length: int | None,
        attend: Attend,
        kernels: Kernels = "torch",
    ) -> None:
        self.records: dict[int, Float[Tensor, "heads columns"]] = {}
        self._layers = {layer.index: layer for layer in cache.layers}
        self._told, self._softmax = told, softmax
        self._max_length, self._attend = max_length, attend
        self._kernels: Kernels = kernels

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """Attend to the cache and, causally, to the pass itself; record what an evictable layer's rows need."""
        rule, told, held = within(rule, self._max_length), self._told, self._layers[layer]
        held_keys, held_values = held.dense
        if held.evictable:
            seen = torch.cat((held_keys[:, : told.head], held_keys[:, told.start : told.stop], keys[0]), dim=1)
            columns = slice(told.head, told.head + told.stop - told.start)
            self.records[layer] = strongest(queries[0], seen, columns, rule, self._softmax, self._kernels)
        all_keys, all_values = torch.cat((held_keys, keys[0]), dim=1), torch.cat((held_values, values[0]), dim=1)
        return self._attend(queries[0], all_keys, all_values, rule)[None]
