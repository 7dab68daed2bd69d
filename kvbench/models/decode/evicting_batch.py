"""Cells whose caches are evicted from as they grow: block by block while a prompt is read, or every few tokens of an
answer. Each evicts by itself (`EvictingCache`), in plain PyTorch.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.recurrent import join_states
from kvbench.eviction.scores.score import AttentionCall
from kvbench.models.decode.batch import DecodeBatch, Heads, KVHeads
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.decode.local_layer import LocalLayer
from kvbench.support.errors import UserError

Finite = tuple[list[tuple[int, int]], Tensor]
"""The cells and layers of some scores, and whether each of these is finite: not yet read from the device."""


class EvictingBatch(DecodeBatch):
    """Cells of one prompt, each with its own cache."""

    uncaptured = "the host counts what cells hold that evict while they answer"

    def __init__(self, caches: Sequence[EvictingCache], cells: int, max_new_tokens: int) -> None:
        assert len({cache.num_tokens for cache in caches}) == 1
        assert not any(cache._lent for cache in caches), "settle the batch that read these caches first"
        recurrent = join_states([cache.recurrent for cache in caches])
        super().__init__(cells, len(caches), caches[0].num_tokens, max_new_tokens, recurrent)
        self.caches, self._closed = caches, set[int]()
        self._alone: Sequence[int] = range(self.num_active)
        self._call: AttentionCall | None = None
        self._local: dict[int, LocalLayer] = {}

    def _attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams) -> Heads:
        """Return outputs; a cell that cannot evict is closed, and `failures` says why."""
        call, self._call = self._call, None
        rule = rule.within(self.caches[0].max_length)
        if rule.sliding_window is not None:
            return self._attend_locally(layer, queries, keys, values, rule)
        for _, cache in self._open(range(self.num_active)):
            cache.full_bytes += (keys.nbytes + values.nbytes) // len(keys)
        return self._attend_and_evict(layer, queries, keys, values, rule, call)

    def _attend_and_evict(
        self,
        layer: int,
        queries: Heads,
        keys: KVHeads,
        values: KVHeads,
        rule: AttentionParams,
        call: AttentionCall | None,
    ) -> Heads:
        """`_attend` for a layer that is evicted from, by each cell in `_alone`; the outputs of others are zero.

        call: as of `receive`.
        """
        outputs = torch.zeros_like(queries)
        for cell, cache in self._open(self._alone):
            try:
                own = call and call._replace(hidden=call.hidden[cell : cell + 1])
                outputs[cell] = cache.attend(layer, queries[cell], keys[cell], values[cell], rule, own)
            except UserError as error:
                self._fail(cell, str(error))
        return outputs

    @property
    def reads_hidden(self) -> bool:
        """Whether `receive` is to get the hidden states that attention layers read."""
        return any(cache.evictor.reads_hidden for cache in self.caches)

    def receive(self, call: AttentionCall) -> None:
        """Take the hidden states of all cells that the attention of a layer is about to read."""
        self._call = call

    def _attend_locally(
        self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: AttentionParams
    ) -> Heads:
        """`_attend` for a layer that the model limits by a sliding window."""
        if layer not in self._local:
            borrowed = [
                cache.lend_layer(layer, queries.shape[1], new, rule.sliding_window)
                for cache, new in zip(self.caches, keys, strict=True)
            ]
            self._local[layer] = LocalLayer(borrowed, self.num_tokens + self.num_new_tokens)
        outputs = self._local[layer].attend(queries, keys, values, rule)
        for _, cache in self._open(range(self.num_active)):
            cache.full_bytes += self._local[layer].bytes_read
        return outputs

    def return_layers(self) -> None:
        """Give every cache its layers back."""
        for local in self._local.values():
            for cell, cache in enumerate(self.caches):
                cache.return_layer(local.layer_of(cell))
        self._local = {}

    def close(self, cell: int) -> None:
        """Stop counting a cell: what its row says of memory must not depend on how long the answers of others are."""
        self._closed.add(cell)

    def finish(self, new: int) -> None:
        """Count tokens as read once all layers have seen them."""
        super().finish(new)
        lent = self._lent_bytes()
        self._check_scores()
        for cell, cache in self._open(range(self.num_active)):
            if self.recurrent is not None:
                cache.recurrent = self.recurrent.part(cell, cell + 1)
            cache.finish(new, lent[cell])

    def _lent_bytes(self) -> list[int]:
        """Return the bytes of the layers of each cell that its cache does not hold itself."""
        lent = [0] * self.num_active
        for local in self._local.values():
            lent = [size + more for size, more in zip(lent, local.bytes_held, strict=True)]
        return lent

    def _check_scores(self) -> None:
        """Close cells with a score that is NaN or inf. The host waits once for the device."""
        scored = list(self._finite())
        if not scored:
            return
        device = scored[0][1].device  # layers may lie on several GPUs
        finite = torch.cat([part.to(device, non_blocking=True) for _, part in scored]).tolist()
        places = (place for of_part, _ in scored for place in of_part)
        for cell, layer in (place for place, is_finite in zip(places, finite, strict=True) if not is_finite):
            score = self.caches[cell].evictor.score.name
            self._fail(cell, f"score {score} of layer {layer} is not finite: NaN or inf")

    def _finite(self) -> Iterator[Finite]:
        """Yield the scores of this pass, each once."""
        for cell, cache in self._open(range(self.num_active)):
            for layer, parts in cache.finite.items():
                yield from (([(cell, layer)], part[None]) for part in parts)
            cache.finite.clear()

    def _fail(self, cell: int, reason: str) -> None:
        if cell not in self._closed:
            self.failures[cell] = reason
            self.close(cell)

    def _open(self, cells: Iterable[int]) -> Iterator[tuple[int, EvictingCache]]:
        """Return the cells that have not stopped."""
        return ((cell, self.caches[cell]) for cell in cells if cell not in self._closed)

    @property
    def positions(self) -> list[int]:
        """The position of the next token of every cell."""
        return [cache.position for cache in self.caches] + [0] * (self.cells - self.num_active)

    def evictions(self, cell: int) -> int:
        """As in `DecodeBatch`."""
        return self.caches[cell].evictions

    @property
    def peak_bytes(self) -> list[int]:
        """Most bytes of the pairs, positions and state of each cell between two forward passes."""
        return [cache.peak_bytes for cache in self.caches]
