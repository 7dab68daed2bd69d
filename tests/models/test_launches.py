"""Budgets of launched operations and of waits of the host, on the pretended GPU.

`transformers` itself launches 40 operations per layer of a Llama in half precision for each token of `generate`.
"""

from collections.abc import Mapping

import pytest
import torch

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.eviction.scores.score import Score
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Prefilled
from tests.models.counted import RAGGED, TOKENS, UNIFORM, Count, counted, small_engine
from tests.pretended_gpu import PretendedGpu

STEP, STEP_WAITS, EVICTION_WAITS = 45, 1, 2


def evicted(prefilled: Prefilled, policy: Policy, budget: int, score: Score | None = None) -> KVCache:
    return Eviction(policy, score or Attention(), Tokens(budget))(prefilled.cache)


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
