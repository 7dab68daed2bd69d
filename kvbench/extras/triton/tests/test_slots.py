"""Cells that evict together equal cells that evict one by one, whatever their score, policy, schedule and company."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, explicit
from kvbench.cache.kernels.choice import Kernels, kernel_module
from kvbench.cache.kv_cache import KVCache, LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.allocation.heads import ChunkHeads, SharedHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Group, Pool
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake, received
from kvbench.eviction.scores.host import Caote, FastCaote
from kvbench.eviction.scores.keys import Cur, KeyDiff, KeyNorm, LagKV
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.ragged import RaggedHeads, Slots
from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import RawTerm, Reduce, Score, WindowScore
from kvbench.eviction.scores.weighted import Finch, Lava, Vatp
from kvbench.extras.heads.triattention import QueryStatistics, TriAttention
from kvbench.extras.positions.re_rotation import KeyReRotation
from kvbench.extras.positions.renumbered import RenumberedEvictingCache
from kvbench.extras.rkv.rkv import RKV
from kvbench.extras.triton.evicting_slots import can_evict
from kvbench.extras.triton.slots_batch import SlotsBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.key_rotation import KeyRotation
from tests.models.looped import Alone
from tests.steps import with_steps

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
H2O = Policy("h2o_obcache", window=8, recent=6, state="accumulate")
TOVA = Policy("tova_obcache", window=1)
POOLED = Policy("pooled", window=8, recent=4, sink=2, pool=Pool("max", 5))
AVERAGED = Policy("averaged", window=8, recent=3, pool=Pool("avg", 3), state="accumulate")
STREAMING = Policy("streaming_llm", sink=2, recent=3, state="none")
APART = replace(POOLED, name="apart", layout="query_heads")
BY_SCORE = replace(AVERAGED, name="cake", state="overwrite", slot_order="score")
SHARED = replace(TOVA, name="tova_official", heads=SharedHeads())
CHUNKS = replace(H2O, name="chunks", heads=ChunkHeads(size=3), window=2)
MEAN = replace(H2O, name="layer_mean", group="layer_mean")
RENUMBERED = with_steps(STREAMING, name="renumbered", positions="cache")
POLICIES = (H2O, TOVA, POOLED, AVERAGED, APART, BY_SCORE, SHARED, CHUNKS, MEAN, with_steps(H2O, positions="cache"))
READING: tuple[Score, ...] = (
    *(Attention(), AttentionMax(), Attention(power=2), Attention(diagonal=False), Cake(), OBCacheValue(), OBCacheKey()),
    *(ExactRemoval(), ExactZeroed(), Caote(), FastCaote(), Caote(host=OBCacheValue()), Lava(), Vatp(), RKV()),
)
KEYS: tuple[Score, ...] = (Recency(), KeyNorm(), KeyDiff(), LagKV(sink=1, lag=3), Cur(), Random())
PAIRS: list[tuple[Policy, Score]] = [
    *((policy, OBCacheJoint()) for policy in POLICIES),
    *((POLICIES[place % 6], score) for place, score in enumerate(READING)),
    *product((STREAMING, RENUMBERED), KEYS),
]
"""Every policy and every score."""
ROTATION = KeyReRotation({0: KeyRotation(torch.tensor([1.0, 0.3, 0.1]), interleaved=False)})
RULES = {
    "plain": AttentionParams(0.3),
    "soft cap and sinks": AttentionParams(
        0.3, softcap=5.0, sinks=torch.tensor([0.1, -0.4, 0.3, 0.9], dtype=torch.float64)
    ),
}


def evictors_of(pairs: Sequence[tuple[Policy, Score]]) -> list[IncrementalEviction]:
    """Capacities of 9 to 14, which differ between heads where policy and score allow it."""
    evictions = []
    for number, (policy, score) in enumerate(pairs):
        most = 9 + number % 5
        equal = policy.renumbers or score.name == "random" or policy.heads.kind != "uniform"
        equal = equal or policy.group == "layer_mean"
        heads = HEADS if policy.layout == "query_heads" else KV_HEADS
        capacity = most if equal else {0: tuple(most + head % 2 for head in range(heads))}
        evictions.append(IncrementalEviction(Eviction(policy, score, TokenBudget(most)), capacity))
    return evictions


def given(cells: int, passes: Sequence[int], dtype: torch.dtype = torch.float64) -> list[list[Tensor]]:
    """Random queries, keys and values of each pass, by cell."""
    draw = torch.Generator().manual_seed(3)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return [[torch.randn(cells, h, new, HEAD_DIM, generator=draw, dtype=dtype) for h in heads] for new in passes]


def cache_of(evictor: IncrementalEviction, every: int, kernels: Kernels = "torch") -> EvictingCache:
    if evictor.policy.renumbers:
        return RenumberedEvictingCache(evictor, every, kernels=kernels, re_rotation=ROTATION)
    return EvictingCache(evictor, every, kernels=kernels)


def together(
    cells: Sequence[EvictingCache], arrays: Sequence[Sequence[Tensor]], rule: AttentionParams
) -> tuple[list[Tensor], list[KVCache]]:
    """Outputs of every pass, and the caches afterwards."""
    kind = EvictingBatch if cells[0].kernels == "torch" else SlotsBatch
    batch = kind(cells, len(cells), sum(queries.shape[2] for queries, *_ in arrays))
    outputs = []
    for queries, keys, values in arrays:
        outputs.append(batch.attend(0, queries, keys, values, rule))
        batch.finish(queries.shape[2])
        batch.check()
    batch.return_layers()
    return outputs, [cache.freeze() for cache in cells]


def check_alone(
    evictions: Sequence[IncrementalEviction],
    every: int,
    arrays: Sequence[Sequence[Tensor]],
    rule: AttentionParams,
    batched: tuple[list[Tensor], list[KVCache]],
    near: float = 1e-9,
) -> None:
    """Each cell by itself gives the same outputs, pairs, order and state."""
    outputs, caches = batched
    for cell, evictor in enumerate(evictions):
        alone = Alone(evictor, every, ROTATION if evictor.policy.renumbers else None)
        what = f"{evictor.policy.name} {evictor.score.name}"
        for output, parts in zip(outputs, arrays, strict=True):
            expected = alone.attend(rule, *(part[cell] for part in parts))
            assert (output[cell] - expected).abs().max() < near, what
        (layer,), expected = caches[cell].layers, alone.layer
        assert expected is not None and layer.offsets == expected.offsets, what
        assert torch.equal(layer.positions, expected.positions), what
        assert (layer.keys - expected.keys).abs().max() < near, what
        assert (layer.values - expected.values).abs().max() < near, what
        assert layer.state.keys() == expected.state.keys()
        for name, numbers in expected.state.items():
            assert torch.allclose(layer.state[name], numbers, rtol=1e-3, atol=1e-5), what


@pytest.mark.parametrize(("every", "rule", "block"), [(1, "plain", 8), (3, "soft cap and sinks", 1024)])
def test_every_score_and_policy(every: int, rule: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells fill up at different times; then a question of several tokens, then an answer. A segment is longer than a
    block of 8, as one of thousands of tokens is longer than the block that GPUs have.
    """
    monkeypatch.setattr(kernel_module("slots"), "BLOCK", block)
    for name in ("pooled", "norms", "cosines"):
        monkeypatch.setattr(kernel_module(name), "LONG_BLOCK", block)
    evictions = evictors_of(PAIRS)
    arrays = given(len(evictions), [7, *[1] * 6, 4, *[1] * 3])
    batched = together([cache_of(evictor, every) for evictor in evictions], arrays, RULES[rule])
    check_alone(evictions, every, arrays, RULES[rule], batched)


KERNELS = [
    (H2O, Attention()),
    (POOLED, OBCacheJoint()),
    (replace(POOLED, state="accumulate"), AttentionMax()),
    (BY_SCORE, Cake()),
    (STREAMING, Recency()),
    (replace(RENUMBERED, recent=5), Recency()),
    (SHARED, OBCacheKey()),
    (with_steps(H2O, positions="cache"), Attention(diagonal=False)),
    (H2O, ExactZeroed()),
    (TOVA, Attention(power=2)),
    (BY_SCORE, OBCacheJoint()),
    (APART, ExactRemoval()),
    (replace(H2O, sink=2), ExactRemoval()),
    (STREAMING, KeyNorm()),
    (CHUNKS, Attention()),
    (replace(CHUNKS, sink=2, pool=Pool("max", 3), state="overwrite"), OBCacheJoint()),
    (MEAN, Attention()),
    (replace(MEAN, pool=Pool("avg", 3), state="overwrite"), OBCacheValue()),
    (STREAMING, Random()),
    (replace(POOLED, state="none"), Random()),
]
FINISHED: list[tuple[Policy, Score]] = [
    (H2O, Caote()),
    (POOLED, FastCaote()),
    (AVERAGED, Caote(host=OBCacheValue())),
    (APART, Caote(squared=True)),
    (TOVA, Caote(host=Lava())),
    (TOVA, Lava()),
    (replace(POOLED, state="accumulate"), Lava(norm=2)),
    (POOLED, Vatp()),
    (AVERAGED, Vatp(weight="before_pool")),
    (TOVA, RKV()),
    (POOLED, RKV(unlike="none", threshold=0.1)),
    (H2O, RKV()),
    (H2O, Finch()),
    (POOLED, Finch(normalize=False)),
    (MEAN, Caote()),
    (MEAN, RKV()),
    (replace(CHUNKS, state="overwrite"), Lava()),
    (STREAMING, KeyDiff()),
    (RENUMBERED, KeyDiff()),
    (STREAMING, Cur(sink=1, span=3)),
    (RENUMBERED, Cur(leverage="kv_avg", span=None, sketch=5)),
    (STREAMING, LagKV(sink=1, lag=3)),
    (RENUMBERED, LagKV(sink=0, lag=2, cross=True)),
]
"""Scores whose last steps are kernels, and a host of each kind."""


@pytest.mark.parametrize(
    ("every", "pairs"),
    [
        pytest.param(1, KERNELS, marks=pytest.mark.slow),
        pytest.param(1, FINISHED, marks=pytest.mark.slow),
        pytest.param(3, KERNELS, marks=pytest.mark.slow),
    ],
)
def test_kernels_evict_the_same_pairs(every: int, pairs: Sequence[tuple[Policy, Score]]) -> None:
    """Heads of different lengths, with and without a pool, running scores and protected tokens."""
    pytest.importorskip("triton")
    evictions = evictors_of(pairs)
    arrays = given(len(evictions), [9, *[1] * 4], torch.float32)
    batched = together([cache_of(evictor, every, "triton") for evictor in evictions], arrays, RULES["plain"])
    check_alone(evictions, every, arrays, RULES["plain"], batched, 1e-3)


def test_kernels_score_by_statistics_of_queries(tmp_path: Path) -> None:
    """Of each head its own, beside scores that read none; positions of tokens and of the cache."""
    pytest.importorskip("triton")
    draw, half = torch.Generator().manual_seed(4), HEAD_DIM // 2
    mean = torch.randn(1, HEADS, half, generator=draw, dtype=torch.complex64)
    size, frequencies = mean.abs() + torch.rand(1, HEADS, half, generator=draw), torch.rand(1, half, generator=draw)
    QueryStatistics(mean, size, frequencies, False, "mine", "abc", {}).write(tmp_path / "queries")
    score = TriAttention(str(tmp_path / "queries"), furthest=16)
    groups: tuple[Group, ...] = ("max", "mean", "sum")
    policies = (*(replace(STREAMING, group=group) for group in groups), RENUMBERED, replace(APART, state="none"))
    evictions = evictors_of([*((policy, score) for policy in policies), (STREAMING, Recency())])
    arrays = given(len(evictions), [12, 1, 1], torch.float32)
    batched = together([cache_of(evictor, 1, "triton") for evictor in evictions], arrays, RULES["plain"])
    check_alone(evictions, 1, arrays, RULES["plain"], batched, 1e-3)


@pytest.mark.parametrize("every", [1, 3])
def test_a_cell_has_the_same_bits_in_any_company(every: int) -> None:
    """In the order of the cache also after a batch that ended between two evictions."""
    evictions = evictors_of(PAIRS)
    arrays = given(len(evictions), [10, *[1] * 4], torch.float32)
    outputs, caches = together([cache_of(evictor, every) for evictor in evictions], arrays, RULES["plain"])
    for cell in range(0, len(evictions), 7):
        own, parts = cache_of(evictions[cell], every), [[part[cell : cell + 1] for part in each] for each in arrays]
        batches = [parts] if every == 1 else [parts[:3], parts[3:]]
        alone = [output for part in batches for output in together([own], part, RULES["plain"])[0]]
        assert all(torch.equal(left[0], right[cell]) for left, right in zip(alone, outputs, strict=True))
        assert torch.equal(own.freeze().layers[0].keys, caches[cell].layers[0].keys)


MIXED: list[tuple[Policy, Score]] = [
    *((POOLED, score) for score in (Attention(), Caote(), Lava(), OBCacheJoint())),
    *((H2O, Attention()), (STREAMING, Recency()), (STREAMING, LagKV(sink=1, lag=3)), (CHUNKS, Attention())),
    *((AVERAGED, OBCacheKey()), (TOVA, RKV()), (replace(AVERAGED, state="overwrite"), RKV()), (H2O, KeyDiff())),
    *((H2O, FastCaote()), (POOLED, Vatp()), (H2O, Finch()), (STREAMING, Cur(sink=1, span=3)), (MEAN, Attention())),
]
"""Cells whose newest pair takes the slot of the worst one, and others."""


def test_cells_that_evict_in_place_lie_beside_others() -> None:
    """In one store of the kernels, with the same bits as alone."""
    pytest.importorskip("triton")
    evictions = evictors_of(MIXED)
    arrays = given(len(evictions), [11, 1, 1], torch.float32)
    cells, defined = ([cache_of(evictor, 1, kernels) for evictor in evictions] for kernels in ("triton", "torch"))
    outputs, caches = together(cells, arrays, RULES["plain"])
    check_alone(evictions, 1, arrays, RULES["plain"], (outputs, caches), 1e-3)
    together(defined, arrays, RULES["plain"])
    assert [cell.evictions for cell in cells] == [cell.evictions for cell in defined]
    assert {cell.evictions for cell in cells} == {0, 1, 2, 3}
    for cell in range(0, len(evictions), 5):
        own = cache_of(evictions[cell], 1, "triton")
        alone, _ = together([own], [[part[cell : cell + 1] for part in each] for each in arrays], RULES["plain"])
        assert all(torch.equal(left[0], right[cell]) for left, right in zip(alone, outputs, strict=True))
        assert torch.equal(own.freeze().layers[0].keys, caches[cell].layers[0].keys)


@dataclass(frozen=True)
class Squares(WindowScore):
    """A score of a plugin: squared attention of the newest token, times the pairs of the head."""

    name: str = "squares"
    row_term: ClassVar[RawTerm] = "attn_squares"

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        assert window is not None
        return received(layer, window.last(1), "sum", power=2) * layer.lengths[0]

    def raw_segments(self, heads: RaggedHeads, sums: Slots | None) -> Slots:
        assert sums is not None
        return sums * heads.segments.lengths[:, None]


@dataclass(frozen=True)
class Halves(Squares):
    """The same in halves, whose class declares no sum."""

    name: str = "halves"

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return super().__call__(layer, window, reduce) / 2


@pytest.mark.parametrize("kernels", ["torch", "triton"])
def test_scores_of_plugins_decode_in_a_batch(kernels: Kernels) -> None:
    """One that declares its sum in the store of the kernels, one that does not beside it."""
    if kernels == "triton":
        pytest.importorskip("triton")
    evictors = evictors_of([(H2O, Squares()), (POOLED, Squares()), (H2O, Halves()), (TOVA, Attention())])
    assert [can_evict(evictor, 1) for evictor in evictors] == [True, True, False, True]
    assert not can_evict(evictors[0], 3)
    arrays = given(len(evictors), [11, 1, 1], torch.float32)
    batched = together([cache_of(evictor, 1, kernels) for evictor in evictors], arrays, RULES["plain"])
    check_alone(evictors, 1, arrays, RULES["plain"], batched, 1e-3)


def test_a_closed_cell_leaves_the_store_at_the_next_question() -> None:
    pytest.importorskip("triton")
    evictors = evictors_of([(H2O, Attention()), (POOLED, OBCacheJoint()), (STREAMING, Recency())])
    arrays = given(3, [9, 1, 1, 4, 1, 1], torch.float32)
    cells = [cache_of(evictor, 1, "triton") for evictor in evictors]
    batch, outputs = SlotsBatch(cells, 4, 20), []
    for number, parts in enumerate(arrays):
        padded = (torch.cat((part, part[:1])) for part in parts)
        outputs.append(batch.attend(0, *padded, RULES["plain"]))
        batch.finish(parts[0].shape[2])
        if number == 2:
            batch.close(0)
    batch.return_layers()
    others = [output[1:3] for output in outputs], [cache.freeze() for cache in cells[1:]]
    check_alone(evictors[1:], 1, [[part[1:] for part in parts] for parts in arrays], RULES["plain"], others, 1e-3)


def test_local_layers_of_several_cells() -> None:
    """Caches of different content: each cell attends to its own window, as it does alone."""
    rule, (evictor, *_) = AttentionParams(0.3, sliding_window=6), evictors_of([(TOVA, Attention())])
    arrays = given(3, [9, *[1] * 4, 3])
    outputs, caches = together([cache_of(evictor, 1) for _ in range(3)], arrays, rule)
    for cell in range(3):
        own = cache_of(evictor, 1)
        alone, _ = together([own], [[part[cell : cell + 1] for part in each] for each in arrays], rule)
        assert all(torch.equal(left[0], right[cell]) for left, right in zip(alone, outputs, strict=True))
        queries, keys, values = (torch.cat([each[at][cell] for each in arrays], dim=1) for at in range(3))
        expected = explicit(queries, keys, values, rule)
        assert (torch.cat(outputs, dim=2)[cell] - expected).abs().max() < 1e-9
        (layer,) = caches[cell].layers
        assert layer.positions.tolist() == [*range(11, 16)] * KV_HEADS and layer.sliding_window == 6
        assert torch.equal(layer.dense[0], keys[:, -5:])
