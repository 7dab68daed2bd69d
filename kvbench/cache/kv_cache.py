"""The KV cache as an immutable value: each layer is one flat store of KV pairs, whose heads may differ in length."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.recurrent import RecurrentState
from kvbench.cache.shapes import Kept, Lengths, Rows, Scores
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, size

POSITION = torch.int32
"""The dtype of positions: four bytes per KV pair, enough for two billion tokens."""

ROTATED = "rotated"
"""The position by which a key was rotated, in `LayerCache.state`: float32, whole up to 2**24."""

UNRECORDED: dict[str, Any] = {"windows": (), "future_queries": (), "recordings": {}}
"""The fields of a `LayerCache` whose pairs have no recorded score inputs any more."""

DensePairs = Float[Tensor, "cache_heads tokens head_dim"]


def query_heads_of(heads: Sequence[int], group: int) -> list[int]:
    """Return the query heads that read these cache heads, `group` each."""
    return [head * group + member for head in heads for member in range(group)]


@dataclass(frozen=True)
class ObservationWindow:
    """The observation window: the newest queries of a layer, oldest first, with their attention outputs.

    lse: the log-sum-exp of their logits over all tokens up to themselves, in float32. Logits are q.k * scaling,
    soft-capped if `softcap` is set. A learned sink of the model is part of `lse` but no token: the weights
    exp(logits - lse) of a row then sum to less than 1. kernels: the implementation of sums over it. unread: pairs of
    weight 0 in a row, as the layer itself chose.
    """

    queries: Rows
    outputs: Rows
    lse: Float[Tensor, "heads queries"]
    scaling: float
    softcap: float | None = None
    kernels: Kernels = "torch"
    unread: Bool[Tensor, "1 queries tokens"] | None = None

    def last(self, rows: int) -> "ObservationWindow":
        """Return the newest `rows` rows, or all of them when there are fewer."""
        held = self.queries.shape[1]
        return self if rows >= held else self.part(held - rows, held)

    def part(self, start: int, stop: int) -> "ObservationWindow":
        """Rows `start` to `stop`, counted from the oldest."""
        return self.at((slice(None), slice(start, stop)))

    def of_span(self, start: int, stop: int) -> "ObservationWindow":
        """Return the rows of query heads `start` to `stop`, as views."""
        return self.at(slice(start, stop))

    def of_heads(self, heads: Sequence[int], cache_heads: int) -> "ObservationWindow":
        """Return the rows of the query heads that read these cache heads, out of `cache_heads`."""
        if len(heads) == cache_heads:
            return self
        chosen = torch.tensor(query_heads_of(heads, self.queries.shape[0] // cache_heads))
        return self.at(chosen.to(self.queries.device, non_blocking=True))

    def at(self, index: Any) -> "ObservationWindow":
        """Return what `index` chooses of the heads and rows."""
        return replace(self, **{name: array[index] for name, array in self.arrays.items()})

    @property
    def arrays(self) -> dict[str, Tensor]:
        """Its arrays by name; rows are the second dimension of each."""
        return {name: array for name, array in vars(self).items() if isinstance(array, Tensor)}


@dataclass(frozen=True)
class PredictedQueries:
    """A request: skip the first `skip` queries of the prompt, and predict the queries of the next `positions`
    positions.
    """

    skip: int
    positions: int

    def __post_init__(self) -> None:
        if self.skip < 0 or self.positions < 1:
            raise UserError(f"score.sink={self.skip} must be 0 or more and score.future={self.positions} 1 or more")


@dataclass(frozen=True)
class FutureQueryStats:
    """Predicted mean and covariance of the future queries of a layer; a logit is q.k * scaling."""

    request: PredictedQueries
    mean: Float[Tensor, "heads head_dim"]
    covariance: Float[Tensor, "heads head_dim head_dim"]
    scaling: float


@dataclass(frozen=True)
class LayerCache:
    """The KV pairs of one layer, whose heads may hold different numbers of them. Head h owns the rows offsets[h] to
    offsets[h + 1] of `keys`, `values` and `positions`, oldest first.

    positions: the position of each KV pair in the token sequence. Keys are rotated by them, unless a policy re-rotates
    the kept keys (`KVCache.next_position`).
    windows, future_queries, recordings: what was recorded for scores (`ScoreInputs`): the newest queries with their
    attention, one record per requested number of rows; the predicted statistics of later queries; one number per head
    and token from extra forward passes, by request, or made of hidden states, by score.
    projections: matrices of the model's attention that scores asked for, by name.
    state: numbers that belong to each KV pair from one eviction to the next, by name, e.g. accumulated attention.
    by_head: numbers of each cache head that a step remembers, by name.
    sliding_window: set for a local layer, where a query at position p attends to the positions above
    p - sliding_window only. Such a layer holds what later tokens can still attend to and is never evicted.
    layers: more than 1 for a stack: the heads of so many layers of one shape, one layer after the other. The first
    of them gives it its `index`.
    """

    index: int
    query_heads: int
    keys: Float[Tensor, "pairs head_dim"]
    values: Float[Tensor, "pairs head_dim"]
    positions: Int[Tensor, "pairs"]
    offsets: tuple[int, ...]
    windows: tuple[ObservationWindow, ...] = ()
    future_queries: tuple[FutureQueryStats, ...] = ()
    state: Mapping[str, Float[Tensor, "pairs"]] = field(default_factory=lambda: MappingProxyType({}))
    sliding_window: int | None = None
    recordings: Mapping[Hashable, Float[Tensor, "heads tokens"]] = field(default_factory=lambda: MappingProxyType({}))
    projections: Mapping[str, Float[Tensor, "out in"]] = field(default_factory=lambda: MappingProxyType({}))
    by_head: Mapping[str, Shaped[Tensor, "cache_heads ..."]] = field(default_factory=lambda: MappingProxyType({}))
    layers: int = 1

    @property
    def evictable(self) -> bool:
        """Whether the layer may be evicted from: not if the model limits it by a sliding window."""
        return self.sliding_window is None

    @property
    def cache_heads(self) -> int:
        """Heads of the cache: KV heads, or query heads in the layout `query_heads`."""
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """KV pairs of each cache head."""
        return tuple(stop - start for start, stop in pairwise(self.offsets))

    @cached_property
    def dense(self) -> tuple[DensePairs, DensePairs]:
        """Keys and values as views [heads, tokens, head_dim]; only for heads of equal length."""
        assert len(set(self.lengths)) == 1, f"ragged heads {self.lengths} have no dense view"
        shape = (self.cache_heads, self.lengths[0], self.keys.shape[1])
        return self.keys.view(shape), self.values.view(shape)

    @cached_property
    def finite(self) -> tuple[Bool[Tensor, ""], Bool[Tensor, ""]]:
        """Whether keys and values hold no NaN or inf, not yet read from the device."""
        return self.keys.isfinite().all(), self.values.isfinite().all()

    def observed(self, rows: int) -> ObservationWindow:
        """Return the newest `rows` queries, or all of a shorter prompt. Raises UserError if no record has as many.

        They may come from a longer record, whose log-sum-exp can differ in the last bits.
        """
        rows = min(rows, self.lengths[0])
        recorded = [window for window in self.windows if window.queries.shape[1] >= rows]
        if not recorded:
            raise UserError(
                f"{rows} queries are to be observed, but layer {self.index} has no record of so many: prefill with it"
            )
        return min(recorded, key=lambda window: window.queries.shape[1]).last(rows)

    def without_newest(self, tokens: int) -> "LayerCache":
        """Return a dense layer and what was recorded of it, without its newest `tokens` tokens."""
        if tokens == 0:
            return self
        keys, values = self.dense
        stop = self.lengths[0] - tokens
        shorter = from_dense(self.index, self.query_heads, keys[:, :stop], values[:, :stop])
        return replace(
            self,
            keys=shorter.keys,
            values=shorter.values,
            positions=self.positions.view(self.cache_heads, -1)[:, :stop].flatten(),
            offsets=shorter.offsets,
            windows=tuple(window.part(0, max(0, window.queries.shape[1] - tokens)) for window in self.windows),
            state={
                name: numbers.view(self.cache_heads, -1)[:, :stop].flatten() for name, numbers in self.state.items()
            },
            recordings={request: numbers[:, :stop] for request, numbers in self.recordings.items()},
        )

    def expected_queries(self, request: PredictedQueries) -> FutureQueryStats:
        """Return the statistics recorded for a request. Raises UserError if there are none."""
        for statistics in self.future_queries:
            if statistics.request == request:
                return statistics
        raise UserError(f"no future queries were recorded for {request}: prefill with it")

    def select(self, kept: Kept, lengths: Sequence[int] | None = None) -> "LayerCache":
        """Return a smaller copy with the KV pairs marked in `kept`, by cache head and column; a column is a slot of the
        head.

        If `kept` has a row per query head while the layer caches KV heads, KV pairs are repeated for each. `lengths`,
        how many are marked by cache head, spares waiting for the device.
        """
        group = kept.shape[0] // self.cache_heads
        lengths = kept.sum(dim=1).tolist() if lengths is None else lengths
        kept, is_dense = kept.to(self.keys.device, non_blocking=True), len(set(self.lengths)) == 1
        if is_dense and group == 1:
            return self.gather(torch.nonzero_static(kept.flatten(), size=sum(lengths))[:, 0], lengths)
        marked = torch.nonzero_static(kept, size=sum(lengths))
        heads, columns = marked[:, 0] // group, marked[:, 1]
        if is_dense:
            return self.gather(heads * self.lengths[0] + columns, lengths)
        starts = torch.tensor(self.offsets).to(heads.device, non_blocking=True)
        return self.gather(starts[heads] + columns, lengths)

    def gather(self, pairs: Int[Tensor, "chosen"], lengths: Sequence[int]) -> "LayerCache":
        """Return a copy of the KV pairs with these indices, as cache heads of these lengths; without recorded score
        inputs.
        """
        assert sum(lengths) == len(pairs)
        return replace(
            self,
            keys=self.keys.index_select(0, pairs),
            values=self.values.index_select(0, pairs),
            positions=self.positions.index_select(0, pairs),
            offsets=(0, *accumulate(lengths)),
            **UNRECORDED,
            state={name: tensor.index_select(0, pairs) for name, tensor in self.state.items()},
        )

    def of_heads(self, heads: Sequence[int]) -> "LayerCache":
        """Return a copy of some cache heads, with the query heads that read them."""
        group = self.query_heads // self.cache_heads
        spans = [torch.arange(self.offsets[head], self.offsets[head + 1]) for head in heads]
        pairs = torch.cat(spans).to(self.keys.device, non_blocking=True)
        return replace(
            self.gather(pairs, [len(span) for span in spans]),
            query_heads=len(heads) * group,
            by_head={name: numbers[list(heads)] for name, numbers in self.by_head.items()},
        )

    def append(
        self, keys: DensePairs, values: DensePairs, first: int, state: Mapping[str, Scores] | None = None
    ) -> "LayerCache":
        """Return a copy with new KV pairs at the end of every cache head, at positions first, first + 1, ..., with this
        state and 0 for what it does not name.
        """
        new = keys.shape[1]
        positions = torch.arange(first, first + new, dtype=POSITION, device=keys.device).expand(self.cache_heads, new)
        return replace(
            self,
            keys=self._joined(self.keys, keys),
            values=self._joined(self.values, values),
            positions=self._joined(self.positions[:, None], positions[..., None])[:, 0],
            offsets=tuple(offset + head * new for head, offset in enumerate(self.offsets)),
            **UNRECORDED,
            state={
                name: self._joined(tensor[:, None], (state or {}).get(name, tensor.new_zeros(1, new))[..., None])[:, 0]
                for name, tensor in self.state.items()
            },
        )

    def _joined(self, old: Tensor, new: Tensor) -> Tensor:
        """Return rows of `old`, one head after the other, each followed by its rows of `new` [heads, rows, width]."""
        if new.shape[0] != self.cache_heads:
            new = new.repeat_interleave(self.cache_heads // new.shape[0], dim=0)
        if len(set(self.lengths)) == 1:
            return torch.cat((old.view(self.cache_heads, self.lengths[0], old.shape[1]), new), dim=1).flatten(0, 1)
        spans = (old[start:stop] for start, stop in pairwise(self.offsets))
        return torch.cat([part for pair in zip(spans, new, strict=True) for part in pair])


@dataclass(frozen=True)
class KVCache:
    """All layers of one sequence. Budgets, lengths and KV pairs count evictable layers only; bytes count all layers.

    num_tokens: tokens read so far, kept or not. next_position: set by key re-rotation (`policy.positions=cache`), the
    position of the next token, which is `num_tokens` otherwise. recurrent: the state of layers without keys, if any;
    its bytes are not counted for the cache. stacks: all evictable layers, several at a time, if they lie so in memory:
    a few large operations then take the place of one for each layer.
    """

    layers: tuple[LayerCache, ...]
    num_tokens: int
    next_position: int | None = None
    recurrent: RecurrentState | None = None
    stacks: tuple[LayerCache, ...] = ()

    def __repr__(self) -> str:
        """Return its sizes: a cache has millions of numbers."""
        held = (
            f"{count_noun(len(self.layers), 'layer')}, {self.pairs} KV pairs of {count_noun(self.num_tokens, 'token')}"
        )
        return f"KVCache({held}, {size([self.bytes_held])})"

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self.num_tokens if self.next_position is None else self.next_position

    @property
    def evictable(self) -> tuple[LayerCache, ...]:
        """All layers but the local ones."""
        return tuple(layer for layer in self.layers if layer.evictable)

    @property
    def stacked(self) -> tuple[LayerCache, ...]:
        """All evictable layers, in stacks where there are any."""
        return self.stacks or self.evictable

    def with_evictable(self, layers: Sequence[LayerCache]) -> "KVCache":
        """Return the same cache with these evictable layers, and its own local ones."""
        assert len(layers) == len(self.evictable)
        replacements = iter(layers)
        joined = tuple(next(replacements) if layer.evictable else layer for layer in self.layers)
        return replace(self, layers=joined, stacks=())

    @property
    def local_layers(self) -> int:
        """Number of layers whose own sliding window keeps them out of eviction."""
        return len(self.layers) - len(self.evictable)

    @property
    def exempt(self) -> dict[str, int | None]:
        """Parts that no policy evicts from, as columns: `local_layers`, `recurrent_layers` and `recurrent_bytes`."""
        state = self.recurrent
        layers, held = (None, None) if state is None else (len(state.layers), state.bytes_held)
        return {"local_layers": self.local_layers, "recurrent_layers": layers, "recurrent_bytes": held}

    @cached_property
    def lengths(self) -> Lengths:
        """KV pairs by evictable layer and cache head."""
        heads = self.evictable[0].cache_heads if self.evictable else 0
        return torch.tensor([layer.lengths for layer in self.evictable], dtype=torch.long).view(-1, max(1, heads))

    @property
    def pairs(self) -> int:
        """KV pairs of all evictable layers."""
        return sum(layer.offsets[-1] for layer in self.evictable)

    @property
    def bytes_held(self) -> int:
        """Bytes of the storages of keys and values: a view of a larger tensor counts all of it."""
        return storage_bytes(tensor for layer in self.layers for tensor in (layer.keys, layer.values))

    @property
    def bytes_allocated(self) -> int:
        """`bytes_held`, and the bytes of positions, of state, and of what steps remember."""
        beside = ((layer.positions, *layer.state.values(), *layer.by_head.values()) for layer in self.layers)
        return self.bytes_held + storage_bytes(tensor for tensors in beside for tensor in tensors)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return bytes of the distinct storages behind `tensors`."""
    return sum({(s := t.untyped_storage()).data_ptr(): s.nbytes() for t in tensors}.values())


def from_dense(
    index: int, query_heads: int, keys: DensePairs, values: DensePairs, windows: tuple[ObservationWindow, ...] = ()
) -> LayerCache:
    """Return a layer that holds every token of every head, at positions 0, 1, ..."""
    heads, tokens, head_dim = keys.shape
    return LayerCache(
        index=index,
        query_heads=query_heads,
        keys=keys.reshape(heads * tokens, head_dim),
        values=values.reshape(heads * tokens, head_dim),
        positions=torch.arange(tokens, dtype=POSITION, device=keys.device).repeat(heads),
        offsets=tuple(head * tokens for head in range(heads + 1)),
        windows=windows,
    )


def joined(windows: Sequence[ObservationWindow]) -> ObservationWindow:
    """Return the rows of consecutive records as one."""
    if len(windows) == 1:
        return windows[0]
    names = windows[0].arrays
    return replace(windows[0], **{name: torch.cat([part.arrays[name] for part in windows], dim=1) for name in names})


def compact(
    cache: KVCache, kept: tuple[Bool[Tensor, "cache_heads tokens"], ...], lengths: Lengths | None = None
) -> KVCache:
    """Return a copy of the marked KV pairs of every evictable layer, without score inputs. Local layers stay as they
    are.
    """
    counts = [None] * len(kept) if lengths is None else lengths.tolist()
    marked = zip(cache.evictable, kept, counts, strict=True)
    return cache.with_evictable([layer.select(mask, count) for layer, mask, count in marked])


@dataclass(frozen=True)
class CutLayer:
    """An evictable layer of a full cache, and the pairs marked in `kept`, `lengths` of each cache head."""

    whole: LayerCache
    kept: Kept
    lengths: tuple[int, ...]
    sliding_window: ClassVar[None] = None

    @property
    def index(self) -> int:
        return self.whole.index

    @property
    def offsets(self) -> tuple[int, ...]:
        """As of the copy."""
        return (0, *accumulate(self.lengths))

    @property
    def keeps_all(self) -> bool:
        """Whether no pair is evicted; `kept` may then have another number of heads."""
        return self.lengths == self.whole.lengths

    @property
    def copied(self) -> LayerCache:
        """The kept pairs; the layer itself if it keeps all."""
        return self.whole if self.keeps_all else self.whole.select(self.kept, self.lengths)


@dataclass(frozen=True)
class CutCache:
    """A full cache, and what is kept of its evictable layers: a stand-in for the smaller cache, with its bytes."""

    whole: KVCache
    kept: tuple[Kept, ...]
    lengths: Lengths

    @property
    def num_tokens(self) -> int:
        return self.whole.num_tokens

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self.whole.position

    @property
    def next_position(self) -> int | None:
        return self.whole.next_position

    @property
    def recurrent(self) -> RecurrentState | None:
        return self.whole.recurrent

    @property
    def evictable(self) -> tuple[CutLayer, ...]:
        """All layers but the local ones."""
        cut = zip(self.whole.evictable, self.kept, self.lengths.tolist(), strict=True)
        return tuple(CutLayer(layer, kept, tuple(lengths)) for layer, kept, lengths in cut)

    @property
    def layers(self) -> tuple[LayerCache | CutLayer, ...]:
        cut = iter(self.evictable)
        return tuple(next(cut) if layer.evictable else layer for layer in self.whole.layers)

    @property
    def pairs(self) -> int:
        """KV pairs of all evictable layers."""
        return int(self.lengths.sum())

    @property
    def bytes_held(self) -> int:
        """Bytes of the keys and values of the copy."""
        local = (layer for layer in self.whole.layers if not layer.evictable)
        return storage_bytes(part for layer in local for part in (layer.keys, layer.values)) + sum(
            layer.offsets[-1] * part.shape[1] * part.itemsize
            for layer in self.evictable
            for part in (layer.whole.keys, layer.whole.values)
        )

    @property
    def bytes_allocated(self) -> int:
        """`bytes_held`, and the bytes of positions."""
        local = storage_bytes(layer.positions for layer in self.whole.layers if not layer.evictable)
        copied = sum(layer.offsets[-1] * layer.whole.positions.itemsize for layer in self.evictable)
        return self.bytes_held + local + copied


def marks(stack: LayerCache, kept: Sequence[Sequence[CutLayer]]) -> Bool[Tensor, "layers cells cache_heads tokens"]:
    """Return what cells keep of the layers of a stack, on its device. kept: by layer and cell."""
    device, heads = stack.keys.device, len(kept[0][0].lengths)

    def mask(layer: CutLayer) -> Kept:
        return ones if layer.keeps_all else layer.kept.to(device, non_blocking=True)

    ones = torch.ones(heads, stack.lengths[0], dtype=torch.bool, device=device)
    masks = torch.stack([mask(layer) for cells in kept for layer in cells])
    return masks.unflatten(0, (len(kept), -1))


def copy_marked(
    stack: LayerCache,
    kept: Bool[Tensor, "layers cells cache_heads tokens"],
    stores: Sequence[Float[Tensor, "pairs head_dim"]],
) -> None:
    """Write keys and values of the marked pairs of a stack, by layer, cell and head, to stores of as many. A mask may
    have a row for each query head of a KV head.
    """
    _, cells, heads, tokens = kept.shape
    of_layer, group = heads * tokens, heads * stack.layers // stack.cache_heads
    marked = torch.nonzero_static(kept.flatten(), size=len(stores[0]))[:, 0]
    source = marked % of_layer
    if group > 1:
        source = source // (group * tokens) * tokens + source % tokens
    if stack.layers > 1:
        source += marked.div_(cells * of_layer, rounding_mode="floor").mul_(of_layer // group)
    for store, part in zip(stores, (stack.keys, stack.values), strict=True):
        torch.index_select(part, 0, source, out=store)


def dense_parts(layer: LayerCache) -> Iterator[tuple[tuple[int, ...], LayerCache]]:
    """Split a ragged layer into dense ones: for each length its cache heads and a layer of only these."""
    if len(set(layer.lengths)) == 1:
        yield tuple(range(layer.cache_heads)), layer
        return
    for length in sorted(set(layer.lengths)):
        heads = tuple(head for head, held in enumerate(layer.lengths) if held == length)
        yield heads, layer.of_heads(heads)
