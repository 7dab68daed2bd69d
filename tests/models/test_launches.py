"""Budgets of launched operations and of waits of the host, on the pretended GPU.

`transformers` itself launches 40 operations per layer of a Llama in half precision for each token of `generate`.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.eviction.scores.score import Score
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.evicting_batch import EvictingBatch, EvictingCache
from kvbench.models.engine import Engine, Prefilled
from tests.models.counted import RAGGED, TOKENS, UNIFORM, Count, counted, small_engine
from tests.pretended_gpu import PretendedGpu

STEP, STEP_WAITS, EVICTION_WAITS = 45, 1, 2
EVICTING_STEP, CELLS = 60, 16
PLAIN = {
    "uniform": replace(UNIFORM, pool=None, state="accumulate"),
    "ragged": replace(RAGGED, pool=None, state="accumulate"),
    "pooled": RAGGED,
}


def evicted(prefilled: Prefilled, policy: Policy, budget: int, score: Score | None = None) -> KVCache:
    return Eviction(policy, score or Attention(), Tokens(budget))(prefilled.cache)


def evicting(engine: Engine, full: KVCache, policy: Policy, score: Score, budget: int) -> EvictingCache:
    """A cache that evicts after every token of an answer."""
    eviction = Eviction(policy, score, Tokens(budget))
    decision = eviction.decide(full)
    stepping = IncrementalEviction(eviction, capacity_after(eviction, full, decision), decoding=True)
    return engine.evicting_cache(stepping, 1, stepping.remember(full, decision, eviction.evict(full, decision)))


@pytest.fixture(scope="module")
def evicting_steps() -> Mapping[str, Count]:
    """Counts of a step in which each of 16 cells, of as many budgets, evicts."""

    def work(gpu: PretendedGpu, layers: int) -> None:
        engine = small_engine(layers, tile=CELLS, kernels="triton")
        full = engine.prefill(torch.arange(TOKENS), {8}).cache
        for name, policy in PLAIN.items():
            for score in (Attention(), OBCacheJoint()):
                caches = [evicting(engine, full, policy, score, 30 + cell) for cell in range(CELLS)]
                batch = EvictingBatch(caches, engine.tile, 2)
                token = torch.zeros(CELLS, 1, dtype=torch.long, device=engine.device)
                engine.read(batch, token)
                with gpu.section(f"{name} {score.name}"):
                    engine.read(batch, token)
                assert not batch.failures

    return counted(work)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("score", ["attn", "obcache_joint"])
def test_a_step_in_which_all_cells_evict(evicting_steps: Mapping[str, Count], name: str, score: str) -> None:
    count = evicting_steps[f"{name} {score}"]
    assert count.launches <= EVICTING_STEP and count.waits == 0 and count.other_waits <= 1, count


@pytest.fixture(scope="module")
def counts() -> Mapping[str, Count]:
    def work(gpu: PretendedGpu, layers: int) -> None:
        engine = small_engine(layers, tile=4, kernels="triton")
        prefilled = engine.prefill(torch.arange(TOKENS), {8})
        for policy in (UNIFORM, RAGGED):
            for score in (Attention(), OBCacheJoint()):
                with gpu.section(f"eviction {policy.name} {score.name}"):
                    evicted(prefilled, policy, 60, score)
        batches = {
            "full": [prefilled.cache],
            "uniform": [evicted(prefilled, UNIFORM, budget) for budget in (40, 50, 60, 60)],
            "ragged": [evicted(prefilled, RAGGED, budget) for budget in (40, 50, 60, 70)],
        }
        for name, caches in batches.items():
            for new_tokens in (3, 5):
                batch = RaggedBatch(caches, engine.tile, new_tokens, engine.kernels)
                with gpu.section(f"{name} {new_tokens} tokens"):
                    engine.generate(prefilled, batch, stop=())

    return counted(work)


@pytest.mark.parametrize("name", ["full", "uniform", "ragged"])
def test_a_step_of_a_batch(counts: Mapping[str, Count], name: str) -> None:
    """The difference of answers of five and of three tokens is two steps."""
    three, five = (counts[f"{name} {tokens} tokens"] for tokens in (3, 5))
    assert (five.launches - three.launches) / 2 <= STEP
    assert five.waits == three.waits
    assert (five.other_waits - three.other_waits) / 2 <= STEP_WAITS


@pytest.mark.parametrize("policy", ["uniform", "ragged"])
@pytest.mark.parametrize("score", ["attn", "obcache_joint"])
def test_an_eviction_waits_little(counts: Mapping[str, Count], policy: str, score: str) -> None:
    eviction = counts[f"eviction {policy} {score}"]
    assert eviction.waits <= EVICTION_WAITS and eviction.other_waits <= 1
