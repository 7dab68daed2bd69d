"""Budgets of launched operations and of waits of the host, on the pretended GPU.

`transformers` itself launches 40 operations per layer of a Llama in half precision for each token of `generate`.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import CutCache, KVCache, compact
from kvbench.eviction.allocation.heads import ChunkHeads, SharedHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention, AttentionMax
from kvbench.eviction.scores.host import Caote, FastCaote
from kvbench.eviction.scores.keys import Cur, KeyDiff, KeyNorm, LagKV
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.weighted import Finch, Lava, Vatp
from kvbench.extras.heads.triattention import QueryStatistics, TriAttention
from kvbench.extras.positions.re_rotation import KeyReRotation
from kvbench.extras.positions.renumbered import RenumberedEvictingCache
from kvbench.extras.rkv.rkv import RKV
from kvbench.extras.triton.slots_batch import SlotsBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.engine import Engine, Prefilled
from kvbench.models.key_rotation import KeyRotation
from tests.models.counted import RAGGED, TOKENS, UNIFORM, counted, small_engine
from tests.pretended_gpu import PretendedGpu
from tests.steps import with_steps

STEP, STEP_WAITS = 45, 1
EVICTION_WAITS = 2
"""Of all layers together."""
EVICTING_STEP, CELLS = 60, 16
ACCUMULATING = replace(UNIFORM, pool=None, state="accumulate")
STREAMING = Policy("streaming_llm", sink=2, recent=3, state="none")
RENUMBERED = with_steps(STREAMING, positions="cache")
MODEL = 37
"""Operations of the model itself, beside its cache, per layer and step."""
SCORES = (Attention(), OBCacheValue(), OBCacheKey(), OBCacheJoint(), ExactRemoval(), ExactZeroed())


def evicted(prefilled: Prefilled, policy: Policy, budget: int, score: Score | None = None) -> KVCache:
    return Eviction(policy, score or Attention(), TokenBudget(budget))(prefilled.cache)


def evicting(engine: Engine, full: KVCache, policy: Policy, score: Score, budget: int) -> EvictingCache:
    """A cache that evicts after every token of an answer."""
    eviction = Eviction(policy, score, TokenBudget(budget))
    decision = eviction.decide(full)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
    return engine.evicting_cache(evictor, 1, evictor.remember(full, decision, eviction.evict(full, decision)))


def test_a_step_in_which_all_cells_evict() -> None:
    """The most of 16 cells with as many budgets and one score: pooled OBCache-Joint over ragged heads."""

    def work(gpu: PretendedGpu, layers: int) -> None:
        engine = small_engine(layers, max_batch=CELLS, kernels="triton")
        full = engine.prefill(torch.arange(TOKENS), {8}).cache
        caches = [evicting(engine, full, RAGGED, OBCacheJoint(), 30 + cell) for cell in range(CELLS)]
        batch = engine.decoding.evicting_batch(caches, engine.max_batch, 2)
        token = torch.zeros(CELLS, 1, dtype=torch.long, device=engine.device)
        engine.read(batch, token)
        with gpu.section("step"):
            engine.read(batch, token)
        assert not batch.failures

    count = counted(work)["step"]
    assert count.launches <= EVICTING_STEP and count.waits == 0 and count.other_waits <= 1, count


@pytest.mark.parametrize("policy", [UNIFORM, RAGGED], ids=lambda policy: policy.name)
def test_cells_that_no_kernel_evicts_from_wait_once_for_all_layers(policy: Policy) -> None:
    """As CAKE and LAVa, whose pool comes before the mean over a group."""

    def work(gpu: PretendedGpu, layers: int) -> None:
        engine = small_engine(layers, kernels="triton")
        full, pooled_first = engine.prefill(torch.arange(TOKENS), {8}).cache, replace(policy, order=("pool", "group"))
        caches = [evicting(engine, full, pooled_first, Attention(), 30 + cell) for cell in range(2)]
        batch = engine.decoding.evicting_batch(caches, engine.max_batch, 2)
        token = torch.zeros(engine.max_batch, 1, dtype=torch.long, device=engine.device)
        engine.read(batch, token)
        with gpu.section("step"):
            engine.read(batch, token)
        assert not batch.failures and [batch.evictions(cell) for cell in range(2)] == [2, 2]

    count = counted(work)["step"]
    assert count.waits == 0 and count.other_waits == 1, count


def read(batch: EvictingBatch, gpu: PretendedGpu, new: int = 1) -> None:
    """New tokens of two layers, all zeros; the second one is counted as `layer`, and what follows as `end`."""
    queries, pairs = (torch.zeros(CELLS, heads, new, 16, dtype=torch.bfloat16, device="cuda") for heads in (8, 4))
    batch.attend(0, queries, pairs, pairs, AttentionParams(0.3))
    with gpu.section("layer"):
        batch.attend(1, queries, pairs, pairs, AttentionParams(0.3))
    with gpu.section("end"):
        batch.finish(new)


SIXTEEN = (
    *SCORES[:5],
    *(AttentionMax(), Caote(), FastCaote(), Lava(), Vatp(), RKV()),
    *(Cur(), LagKV(sink=2, lag=8), KeyDiff(), KeyNorm(), Random()),
)
"""As many scores as cells."""
CASES: dict[str, list[tuple[Policy, Score]]] = {
    "attn": [(ACCUMULATING, Attention())],
    "caches that still grow": [(ACCUMULATING, Attention())],
    "streaming": [(STREAMING, Recency())],
    "key_norm": [(STREAMING, KeyNorm())],
    "six scores": [(ACCUMULATING, score) for score in SCORES],
    "six scores, pooled": [(RAGGED, score) for score in SCORES],
    "two pools and none": [
        *((ACCUMULATING, Attention()), (RAGGED, OBCacheJoint()), (UNIFORM, Attention()), (STREAMING, Recency())),
    ],
    "every 8": [(ACCUMULATING, Attention())],
    "every 8, obcache_joint": [(RAGGED, OBCacheJoint())],
    "shared heads": [(replace(ACCUMULATING, heads=SharedHeads()), Attention())],
    "positions by cache": [(RENUMBERED, Recency())],
    "sums, running sums, positions": [
        *((ACCUMULATING, Attention()), (replace(UNIFORM, pool=None), Attention()), (STREAMING, Recency())),
    ],
    "caote": [(ACCUMULATING, Caote())],
    "caote, pooled": [(UNIFORM, Caote())],
    "lava, pooled": [(UNIFORM, Lava())],
    "vatp, pooled": [(UNIFORM, Vatp())],
    "rkv, pooled": [(UNIFORM, RKV())],
    "key_diff": [(STREAMING, KeyDiff())],
    "cur": [(STREAMING, Cur())],
    "cur, projected": [(STREAMING, Cur(leverage="key", sketch=8))],
    "lagkv": [(STREAMING, LagKV(sink=2, lag=8))],
    "cur, lagkv, key_diff": [(STREAMING, score) for score in (Cur(), LagKV(sink=2, lag=8), KeyDiff())],
    "in place and not": [(UNIFORM, Caote()), (UNIFORM, Lava()), (UNIFORM, RKV()), (ACCUMULATING, Attention())],
    "eight scores that kernels finish": [
        *((UNIFORM, score) for score in (Caote(), Lava(), Vatp(), RKV())),
        *((STREAMING, score) for score in (Cur(), LagKV(sink=2, lag=8), KeyDiff())),
        (ACCUMULATING, Attention()),
    ],
    "sixteen scores, pooled": [(UNIFORM, score) for score in SIXTEEN],
    "random": [(STREAMING, Random())],
    "chunks": [(replace(ACCUMULATING, heads=ChunkHeads(size=3)), Attention())],
    "a mean over heads": [(replace(ACCUMULATING, group="layer_mean"), Attention())],
    "finch": [(replace(RENUMBERED, state="overwrite"), Finch())],
    "four pooled": [(UNIFORM, score) for score in (Caote(), Lava(), RKV(), Attention())],
    "slots by score and by position": [
        *((replace(RAGGED, slot_order="score"), OBCacheJoint()), (RAGGED, OBCacheJoint()), (UNIFORM, Attention())),
    ],
    "positions by cache and original": [
        *((RENUMBERED, Recency()), (RAGGED, OBCacheJoint()), (ACCUMULATING, Attention())),
    ],
    "slots by score": [(replace(RAGGED, slot_order="score"), OBCacheJoint())],
}
"""Policies and scores of the cells."""


def check_sixteen_budgets(pairs: list[tuple[Policy, Score]], every: int = 1, first: int = 60) -> None:
    """Operations per layer and step, with those of the model, and waits of a step, on average between evictions, of
    cells that have read `first` tokens and evict `every` so many."""
    with PretendedGpu(interpret=False) as gpu:
        rotated = KeyRotation(torch.rand(8, device="cuda"), interleaved=False)
        rotation = KeyReRotation({0: rotated, 1: rotated})
        caches = []
        for cell in range(CELLS):
            policy, score = pairs[cell % len(pairs)]
            evictor = IncrementalEviction(Eviction(policy, score, TokenBudget(30 + cell)), 30 + cell)
            if policy.renumbers:
                caches.append(RenumberedEvictingCache(evictor, every, kernels="triton", re_rotation=rotation))
            else:
                caches.append(EvictingCache(evictor, every, kernels="triton"))
        batch = SlotsBatch(caches, CELLS, 100)
        for new in (first, 1, 1):
            read(batch, gpu, new)
        gpu.launches.clear()
        gpu.waits.clear()
        for _ in range(every):
            read(batch, gpu)
    assert not batch.failures and not gpu.mixed
    assert gpu.waited("layer") == 0
    assert gpu.waited("end") <= 1  # whether scores are finite, in the step that evicts
    assert MODEL + gpu.launched("layer") / every <= EVICTING_STEP


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if place % 6 else ()) for place, name in enumerate(CASES)]
)
def test_sixteen_budgets(name: str) -> None:
    every, first = 8 if name.startswith("every 8") else 1, 8 if name == "caches that still grow" else 60
    check_sixteen_budgets(CASES[name], every, first)


def test_sixteen_budgets_of_statistics_of_queries(tmp_path: Path) -> None:
    mean, frequencies = torch.ones(2, 8, 8, dtype=torch.complex64), torch.ones(2, 8)
    statistics = QueryStatistics(mean, 2 * mean.abs(), frequencies, False, "mine", "abc", {})
    statistics.write(tmp_path / "queries")
    check_sixteen_budgets([(STREAMING, TriAttention(str(tmp_path / "queries")))])


def test_evictions_and_steps_of_a_batch_launch_and_wait_little() -> None:
    """The difference of answers of five and of three tokens is two steps."""

    def work(gpu: PretendedGpu, layers: int) -> None:
        engine = small_engine(layers, max_batch=4, kernels="triton")
        prefilled = engine.prefill(torch.arange(TOKENS), {8})
        for policy, score in product((UNIFORM, RAGGED), (Attention(), OBCacheJoint())):
            with gpu.section(f"eviction {policy.name} {score.name}"):
                evicted(prefilled, policy, 60, score)
        batches = {
            "full": [prefilled.cache],
            "uniform": [evicted(prefilled, UNIFORM, budget) for budget in (40, 50, 60, 60)],
            "ragged": [evicted(prefilled, RAGGED, budget) for budget in (40, 50, 60, 70)],
        }
        for (name, caches), new_tokens in product(batches.items(), (3, 5)):
            batch = engine.batch(caches, new_tokens)
            with gpu.section(f"{name} {new_tokens} tokens"):
                engine.generate(prefilled, batch, stop=())

    counts = counted(work)
    for name in ("full", "uniform", "ragged"):
        three, five = (counts[f"{name} {tokens} tokens"] for tokens in (3, 5))
        assert (five.launches - three.launches) / 2 <= STEP, name
        assert five.waits == three.waits and (five.other_waits - three.other_waits) / 2 <= STEP_WAITS, name
    evictions = [count for name, count in counts.items() if name.startswith("eviction")]
    assert len(evictions) == 4 and all(each.waits == 0 and each.other_waits <= EVICTION_WAITS for each in evictions)


def cut(full: KVCache, policy: Policy, budget: int) -> CutCache:
    decision = Eviction(policy, Attention(), TokenBudget(budget)).decide(full)
    return CutCache(full, decision.kept, decision.lengths)


@pytest.mark.parametrize(("kind", "launches"), [("own copy", 14), ("another record", 0)])
def test_a_cell_that_is_cut_from_no_stack_leaves_the_others_together(kind: str, launches: int) -> None:
    """A cell with a copy of its own, or over the same full cache with other records, as after a repetition."""

    def work(gpu: PretendedGpu, layers: int) -> None:
        engine = small_engine(layers, max_batch=CELLS, kernels="triton")
        full = engine.prefill(torch.arange(TOKENS), {8}).cache
        cells: list[KVCache | CutCache] = [cut(full, RAGGED, 30 + cell) for cell in range(CELLS - 1)]
        other = full.with_evictable([replace(layer, windows=()) for layer in full.evictable])
        cells.insert(3, compact(full, cells[0].kept) if kind == "own copy" else replace(cells[0], whole=other))
        with gpu.section("batch"):
            engine.batch(cells, 4)

    count = counted(work)["batch"]
    assert count.launches <= launches and count.waits == 0, count
