"""The cache of one cell that is evicted from as it grows: the definition that every faster way is tested against.

A layer evicts right after the attention of the newest tokens, whose output is not affected. No position changes.
"""

import sys
from dataclasses import dataclass, field, replace

from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow, from_dense, joined
from kvbench.cache.recurrent import RecurrentState
from kvbench.eviction.incremental import RECORDED, IncrementalEviction
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.score import AttentionCall
from kvbench.models.decode.batch import CellPairs, CellRows
from kvbench.models.prefill import read_hidden


@dataclass
class EvictingCache:
    """A cache that evicts as soon as `every` or more tokens were read since its last eviction; None: never.

    cache: the initial cache, with the state that `evictor` added (`IncrementalEviction.remember`); None: empty.
    max_length: of a sequence; a sliding window of a layer that is at least as long is none. kernels: of attention with
    a single row and of sums over the window. divides: whether layers are only ranked as they read, and `finish` divides
    one budget among them. num_tokens: tokens read so far. position: of the next token. pending: tokens read since the
    last eviction. evictions: after how many passes a layer has lost pairs. drops: whether one loses some in the pass
    that `finish` ends. peak_bytes: the most bytes held between two forward passes, before a division of the budget.
    full_bytes: bytes of the tokens read here if nothing were evicted. recurrent: the state of layers without keys.
    finite: of the layers that evict in this pass, whether their scores are, which the host reads once for all of them.
    """

    evictor: IncrementalEviction
    every: int | None
    cache: KVCache | None = None
    max_length: int | None = None
    kernels: Kernels = "torch"
    divides: bool = False
    num_tokens: int = 0
    position: int = 0
    pending: int = 0
    evictions: int = 0
    drops: bool = False
    peak_bytes: int = 0
    full_bytes: int = 0
    recurrent: RecurrentState | None = None
    finite: dict[int, list[Tensor]] = field(default_factory=dict)
    _layers: dict[int, LayerCache] = field(default_factory=dict)
    _rows: dict[int, list[ObservationWindow]] = field(default_factory=dict)
    _rankings: dict[int, Ranking] = field(default_factory=dict)
    _lent: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.cache is not None:
            self.num_tokens, self.position = self.cache.num_tokens, self.cache.position
            self._layers = {layer.index: layer for layer in self.cache.layers}
            self.recurrent = self.cache.recurrent
            self.peak_bytes, self.cache = self.cache.bytes_allocated, None

    def attend(
        self,
        index: int,
        queries: CellRows,
        keys: CellPairs,
        values: CellPairs,
        rule: AttentionParams,
        call: AttentionCall | None = None,
    ) -> CellRows:
        """Append the new tokens to a layer, attend to all of its pairs, and evict if that is due.

        call: with the hidden states that the layer reads. Raises UserError as a score does.
        """
        held = self._layers[index] if index in self._layers else self.empty(index, len(queries), keys, None)
        state, new = dict[str, Tensor](), keys.shape[1]
        if self.evictor.reads_hidden:
            alone = from_dense(index, len(queries), keys, values)
            alone = replace(alone, positions=alone.positions + self.num_tokens)
            state[RECORDED] = read_hidden(self.evictor.score, alone, call)
        grown, shown = self.grow(held, keys, values, state)
        reads = self.every is not None and (self._scores_rows or self.divides)
        window = replace(attend_layer(queries, shown, rule, self.kernels, reads), kernels=self.kernels)
        rows = self._rows.setdefault(index, [])
        if reads:
            rows.append(window)
            del rows[: -self.evictor.policy.rows(sys.maxsize)]
        if self.due(new):
            grown = self.evict(grown, shown, joined(rows) if rows else None)
            rows.clear()
        self._layers[index] = grown
        return window.outputs

    def grow(
        self, held: LayerCache, keys: CellPairs, values: CellPairs, state: dict[str, Tensor]
    ) -> tuple[LayerCache, LayerCache]:
        """Return a layer with new pairs behind those that it held; and the same with keys as queries attend to them."""
        grown = held.append(keys, values, self.num_tokens, state)
        return grown, grown

    @property
    def _scores_rows(self) -> bool:
        """Whether an eviction reads observed queries."""
        return self.evictor.score.inputs.window or bool(self.evictor.policy.reading_steps)

    def due(self, new: int) -> bool:
        """Return whether the cache evicts after so many further tokens."""
        return self.every is not None and self.pending + new >= self.every

    def evict(self, grown: LayerCache, shown: LayerCache, window: ObservationWindow | None) -> LayerCache:
        """Return a layer after its eviction, or ranked for one; `shown` has the keys as queries attend to them."""
        finite = self.finite.setdefault(grown.index, [])
        if self.divides:
            ranked, self._rankings[grown.index] = self.evictor.rank(grown, window, finite)
            return ranked
        if not self.evictor.changes(grown):
            return grown
        evicted = self.evictor.step(shown, window, finite).layer
        self.drops |= evicted.lengths != grown.lengths
        return evicted

    def finish(self, new: int, elsewhere: int = 0) -> None:
        """Count tokens as read once all layers have seen them, and divide the budget of the ranked ones.

        elsewhere: bytes of the layers that were taken.
        """
        due = self.due(new)
        self.num_tokens += new
        self.position += new
        self.pending = 0 if due else self.pending + new
        here = KVCache(tuple(self._layers.values()), self.num_tokens).bytes_allocated
        self.peak_bytes = max(self.peak_bytes, here + elsewhere)
        if self._rankings:
            indices = sorted(self._rankings)
            rankings = [self._rankings[index] for index in indices]
            counts = self.evictor.divide(rankings, self.num_tokens)
            self.drops = counts != tuple(ranking.available for ranking in rankings)
            for index, kept in zip(indices, counts, strict=True):
                self._layers[index] = self.evictor.keep(self._layers[index], self._rankings.pop(index), kept).layer
        self.evictions += self.drops
        self.drops = False

    def lend_layer(self, index: int, heads: int, keys: CellPairs, sliding_window: int | None) -> LayerCache:
        """Return a layer, to be held elsewhere until `return_layer`; `keys` are like the keys of its new pairs."""
        self._lent.add(index)
        return self._layers.pop(index) if index in self._layers else self.empty(index, heads, keys, sliding_window)

    def empty(self, index: int, heads: int, keys: CellPairs, sliding_window: int | None) -> LayerCache:
        """Return a layer of so many query heads without pairs; `keys` are like the keys of its new pairs."""
        empty = self.evictor.start(index, heads, keys.shape[0], keys)
        if sliding_window is not None:  # what is never evicted from is cached as the model does
            return replace(empty, offsets=(0,) * (keys.shape[0] + 1), state={}, sliding_window=sliding_window)
        return empty

    def pending_rows(self, index: int) -> ObservationWindow | None:
        """Return the records of the tokens of a layer since the last eviction, to be held elsewhere."""
        rows = self._rows.pop(index, [])
        return joined(rows) if rows else None

    def return_layer(self, layer: LayerCache, window: ObservationWindow | None = None) -> None:
        """Put a layer back, and what its newest tokens saw."""
        self._layers[layer.index] = layer
        self._lent.discard(layer.index)
        if window is not None:
            self._rows[layer.index] = [window]

    def freeze(self) -> KVCache:
        """Return the current cache, once a batch that read it is settled."""
        assert not self._lent, "layers of this cache are held by a batch: settle it first"
        layers = tuple(self._layers[index] for index in sorted(self._layers))
        return KVCache(layers, self.num_tokens, self.recurrent)
