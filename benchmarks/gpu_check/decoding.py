"""Cells that evict after every token: all of them in one batch with kernels, against PyTorch in float64."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.gpu_check.checks import OUTPUTS, SUMS, Check
from kvbench.cache.attention import AttentionParams
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow
from kvbench.eviction.allocation.heads import ChunkHeads, SharedHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake
from kvbench.eviction.scores.host import Caote, FastCaote
from kvbench.eviction.scores.keys import Cur, KeyDiff, KeyNorm, LagKV
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.weighted import Finch, Lava, Vatp
from kvbench.extras.heads.triattention import QueryStatistics, TriAttention
from kvbench.extras.positions.positions import Positions
from kvbench.extras.positions.re_rotation import KeyReRotation
from kvbench.extras.positions.renumbered import RenumberedEvictingCache
from kvbench.extras.rkv.rkv import RKV
from kvbench.extras.triton.slots_batch import SlotsBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.key_rotation import KeyRotation

H2O = Policy("h2o_obcache", window=8, recent=6, state="accumulate")
TOVA = Policy("tova_obcache", window=1)
POOLED = Policy("snapkv", window=8, recent=4, sink=2, pool=Pool("avg", 3))
STREAMING = Policy("streaming_llm", sink=2, recent=3, state="none")
BY_SCORE = replace(POOLED, name="cake", sink=0, slot_order="score")
RENUMBERED = replace(STREAMING, steps=(Positions("cache"),))
GROUPS: dict[str, Sequence[tuple[Policy, Score]]] = {
    "sums of a row": [
        *((H2O, score) for score in (Attention(), ExactRemoval(), ExactZeroed(), OBCacheValue())),
        *((POOLED, score) for score in (OBCacheJoint(), AttentionMax(), OBCacheKey())),
        (replace(TOVA, heads=SharedHeads()), Attention()),
        (replace(POOLED, layout="query_heads"), OBCacheJoint()),
    ],
    "scores finished by kernels": [
        *((H2O, score) for score in (Caote(), RKV(), Finch())),
        *((POOLED, score) for score in (FastCaote(), Vatp(), Lava())),
        *((STREAMING, score) for score in (KeyDiff(), KeyNorm(), Cur(sink=1), LagKV(sink=2, lag=4))),
    ],
    "scores over all heads of a cell": [
        *((replace(H2O, heads=ChunkHeads(size=7)), score) for score in (Attention(), OBCacheJoint())),
        *((replace(policy, group="layer_mean"), Attention()) for policy in (H2O, TOVA)),
        (STREAMING, Random()),
    ],
    "slots by score": [(BY_SCORE, Cake()), (BY_SCORE, OBCacheJoint())],
    "slots by score and by position": [(BY_SCORE, Cake()), (POOLED, OBCacheJoint()), (H2O, Attention())],
    "positions in the cache": [(RENUMBERED, Recency()), (RENUMBERED, KeyNorm())],
    "positions in the cache and of tokens": [(RENUMBERED, Recency()), (STREAMING, KeyNorm()), (POOLED, OBCacheJoint())],
}
"""Policies and scores of the cells of a batch; with those of `_foreseeing` every kernel of decoding computes some."""


MOST_TIES = 0.1
"""Share of evictions that near ties may decide where slots are in no order of scores."""
PASSES = 10
"""Tokens that are read between two comparisons of what cells hold."""


@dataclass(frozen=True)
class Watched(IncrementalEviction):
    """Evictions that remember the layer and the ranking of each step."""

    seen: list[tuple[LayerCache, Ranking]] = field(default_factory=list)

    def rank(
        self, layer: LayerCache, window: ObservationWindow | None, finite: list[Tensor] | None = None
    ) -> tuple[LayerCache, Ranking]:
        ranked = super().rank(layer, window, finite)
        self.seen.append(ranked)
        return ranked


@dataclass
class Found:
    """What a comparison found: the largest error of an output, and of all evictions of a cell by a token how many hold
    other pairs, by a near tie or wrongly.
    """

    error: float = 0.0
    evictions: int = 0
    ties: int = 0
    wrong: int = 0


def decoding_checks(device: torch.device, small: bool) -> Iterator[Check]:
    """Outputs of every step, and the pairs that are left, in batches with budgets that differ by cell and head.

    Where pairs differ, every step is made again from equal states. It is right if the exact scores say so but for
    rounding: no evicted pair then has a higher score than a kept one, nor a later slot than an earlier one.
    """
    tokens, steps = (18, 6) if small else (1300, 60)
    with TemporaryDirectory() as folder:
        groups = GROUPS | {"statistics of queries": []}
        for (group, pairs), head_dim in product(groups.items(), (16,) if small else (64, 128)):
            pairs = pairs or _foreseeing(head_dim, Path(folder))
            for dtype in (torch.float32,) if small or "positions in the cache" in group else OUTPUTS:
                arrays = _drawn(len(pairs), tokens, steps, head_dim, dtype, device)
                found = compared(pairs, tokens, arrays)
                name = f"decoding, {group}, {str(dtype).removeprefix('torch.')} head_dim {head_dim}"
                total = found.evictions
                yield Check(f"{name}: evictions of {total} that scores do not explain", float(found.wrong), 0.0)
                most_ties = 1.0 if any(policy.slot_order == "score" for policy, _ in pairs) else MOST_TIES
                yield Check(f"{name}: evictions that near ties decide", found.ties / total, most_ties)
                yield Check(f"{name}: outputs", found.error, 2 * OUTPUTS[dtype])


def compared(pairs: Sequence[tuple[Policy, Score]], tokens: int, arrays: Sequence[Sequence[Tensor]]) -> Found:
    """Decode with kernels and in float64, in parts that begin with equal states."""
    dtype, found = arrays[0][0].dtype, Found()
    caches: list[KVCache] | None = None
    parts = [arrays[:1], *(arrays[at : at + PASSES] for at in range(1, len(arrays), PASSES))]
    for part in parts:
        true, fast = _both(pairs, tokens, part, caches)
        if len(part) == 1 or all(map(_alike, true.caches, fast.caches)):
            _judge(pairs, true, fast, dtype, found)
            caches = true.caches
            continue
        for single in part:
            true, fast = _both(pairs, tokens, [single], caches)
            _judge(pairs, true, fast, dtype, found)
            caches = true.caches
    return found


@dataclass(frozen=True)
class Decoded:
    """Outputs of every pass of a batch, the caches that remain, and what was ranked, by cell."""

    outputs: list[Tensor]
    caches: list[KVCache]
    seen: list[list[tuple[LayerCache, Ranking]]]


def _both(
    pairs: Sequence[tuple[Policy, Score]],
    tokens: int,
    arrays: Sequence[Sequence[Tensor]],
    caches: Sequence[KVCache] | None,
) -> tuple[Decoded, Decoded]:
    """The same passes from the same caches (None: empty ones), in float64 by PyTorch and with kernels."""
    wide = [[part.double() for part in parts] for parts in arrays]
    narrow = caches and [_cast(cache, arrays[0][0].dtype) for cache in caches]
    return _decode(pairs, tokens, wide, "torch", caches), _decode(pairs, tokens, arrays, "triton", narrow)


def _cast(cache: KVCache, dtype: torch.dtype) -> KVCache:
    """A cache with pairs of a type, and numbers of float32."""
    layers = [
        replace(
            layer,
            keys=layer.keys.to(dtype),
            values=layer.values.to(dtype),
            state={name: part.float() for name, part in layer.state.items()},
        )
        for layer in cache.layers
    ]
    return replace(cache, layers=tuple(layers))


def _alike(cache: KVCache, other: KVCache) -> bool:
    """Whether two caches hold the same pairs in the same slots."""
    (layer,), (of_other,) = cache.layers, other.layers
    return layer.offsets == of_other.offsets and torch.equal(layer.positions, of_other.positions)


def _judge(
    pairs: Sequence[tuple[Policy, Score]], true: Decoded, fast: Decoded, dtype: torch.dtype, found: Found
) -> None:
    """Add what passes from equal states found; the caches of several passes are alike."""
    outputs = zip(fast.outputs, true.outputs, strict=True)
    found.error = max(found.error, *((a.double() - b).abs().max().item() for a, b in outputs))
    found.evictions += len(pairs) * len(true.outputs)
    for (policy, _), cache, other, seen in zip(pairs, true.caches, fast.caches, true.seen, strict=True):
        if not _alike(cache, other):
            tie = cache.layers[0].offsets == other.layers[0].offsets and bool(seen)
            tie = tie and _explained(policy, *seen[-1], other.layers[0], dtype)
            found.ties, found.wrong = found.ties + tie, found.wrong + (not tie)


def _explained(policy: Policy, before: LayerCache, ranking: Ranking, after: LayerCache, dtype: torch.dtype) -> bool:
    """Whether what a layer holds after an eviction follows from the exact scores, but for rounding."""
    scores, first = policy.chooses(ranking).scores.double().cpu(), ranking.first
    held, kept = (layer.positions.cpu().split(layer.lengths) for layer in (before, after))
    for head, (every, left) in enumerate(zip(held, kept, strict=True)):
        candidates = every[first : first + ranking.available[head]]
        value_of = dict(zip(candidates.tolist(), scores[head].tolist(), strict=False))
        before_it, slots = {*every.tolist()}, left.tolist()
        protected, evicted = before_it - {*value_of}, {*value_of} - {*slots}
        if len({*slots}) < len(slots) or not protected <= {*slots} <= before_it:
            return False
        order = [value_of[position] for position in slots if position in value_of]
        above = max((value_of[position] for position in evicted), default=-torch.inf)
        room = SUMS[dtype] * max(map(abs, value_of.values()))
        in_order = order
        if policy.slot_order != "score":
            if slots != sorted(slots):
                return False
            in_order = [min(order, default=torch.inf)]
        pairs = zip(in_order, [*in_order[1:], above], strict=True)
        if any(lower - higher > room + OUTPUTS[dtype] * max(abs(higher), abs(lower)) for higher, lower in pairs):
            return False
    return True


def _foreseeing(head_dim: int, folder: Path) -> Sequence[tuple[Policy, Score]]:
    """TriAttention with statistics of queries that are drawn, in a file."""
    draw, shape = torch.Generator().manual_seed(head_dim), (1, 4, head_dim // 2)
    mean = torch.randn(shape, generator=draw, dtype=torch.complex64)
    frequencies = 1e4 ** (-torch.arange(head_dim // 2) / (head_dim // 2))
    queries = QueryStatistics(mean, mean.abs() + 0.5, frequencies[None], False, "drawn", "drawn", {})
    queries.write(folder / f"{head_dim}")
    score = TriAttention(str(folder / f"{head_dim}"))
    return [(STREAMING, score), (RENUMBERED, score), (POOLED, OBCacheJoint())]


def _drawn(
    cells: int, tokens: int, steps: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> list[list[Tensor]]:
    """Queries, keys and values of a prompt, then of single tokens: 4 query heads over 2 KV heads."""
    draw = torch.Generator(device).manual_seed(head_dim)
    return [
        [torch.randn(cells, heads, new, head_dim, generator=draw, device=device).to(dtype) for heads in (4, 2, 2)]
        for new in (tokens, *[1] * steps)
    ]


def _decode(
    pairs: Sequence[tuple[Policy, Score]],
    tokens: int,
    arrays: Sequence[Sequence[Tensor]],
    kernels: Kernels,
    caches: Sequence[KVCache] | None,
) -> Decoded:
    """Passes of a batch from some caches, or from empty ones."""
    half = arrays[0][0].shape[-1] // 2
    frequencies = (1e4 ** (-torch.arange(half) / half)).to(arrays[0][0].device)
    rotation = KeyReRotation({0: KeyRotation(frequencies, interleaved=False)})
    cells, seen = [], []
    for cell, (policy, score) in enumerate(pairs):
        most, heads = tokens // 2 + 3 * cell, 4 if policy.layout == "query_heads" else 2
        equal = policy.renumbers or policy.heads.kind != "uniform" or policy.group == "layer_mean"
        capacity = most if equal else {0: tuple(most + 5 * head for head in range(heads))}
        evictor = Watched(Eviction(policy, score, TokenBudget(most)), capacity)
        kind = partial(RenumberedEvictingCache, re_rotation=rotation) if policy.renumbers else EvictingCache
        start = None if caches is None else caches[cell]
        cells.append(kind(evictor, 1, start, kernels=kernels))
        seen.append(evictor.seen)
    kind = EvictingBatch if kernels == "torch" else SlotsBatch
    batch = kind(cells, len(cells), tokens + len(arrays))
    outputs = []
    for queries, keys, values in arrays:
        outputs.append(batch.attend(0, queries, keys, values, AttentionParams(queries.shape[-1] ** -0.5)))
        batch.finish(queries.shape[2])
        batch.check()
    batch.return_layers()
    return Decoded(outputs, [cell.freeze() for cell in cells], seen)
