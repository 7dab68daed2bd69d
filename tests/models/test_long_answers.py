"""Caches of long answers stay as large as their budget and one buffer, however long the answer is."""

import pytest
import torch

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.extras.heads.tests.test_triattention import STATISTICS
from kvbench.extras.heads.triattention import TriAttention
from kvbench.extras.rkv.rkv import RKV
from kvbench.models.decode.evicting_batch import EvictingBatch
from tests.models.families import engine_of

BUDGET, EVERY, ANSWER = 24, 16, 320
RKV_8 = Eviction(Policy("rkv", window=8, reduce="mean", recent=8, pool=Pool("max", 7)), RKV(), TokenBudget(BUDGET))
TRIATTENTION = Eviction(
    Policy("triattention", window=1, state="none"), TriAttention(str(STATISTICS)), TokenBudget(BUDGET)
)


@pytest.mark.parametrize("eviction", [RKV_8, TRIATTENTION], ids=lambda eviction: eviction.policy.name)
def test_bytes_repeat_buffer_by_buffer(eviction: Eviction) -> None:
    """A prompt shorter than the budget grows to it; from then on each buffer ends with the budget, in as many bytes."""
    engine = engine_of("qwen3", max_batch=1, num_hidden_layers=3)  # heads as many and as large as in the statistics
    prompt = engine.prefill(torch.arange(3, 13), {8}).cache
    decision = eviction.decide(prompt)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, prompt, decision), decoding=True)
    evicted = evictor.remember(prompt, decision, eviction.evict(prompt, decision))
    cache = engine.evicting_cache(evictor, EVERY, evicted)
    batch, most = EvictingBatch([cache], 1, ANSWER), []
    for step in range(1, ANSWER + 1):
        engine.read(batch, torch.tensor([[3 + step % 90]]))
        assert not batch.failures
        if step % EVERY == 0:
            most.append(cache.peak_bytes)
            batch.return_layers()
            held = cache.freeze()
            assert set(held.lengths.flatten().tolist()) == {min(10 + step, BUDGET)}
            cache.peak_bytes = 0
    pair = prompt.bytes_allocated // prompt.pairs
    assert set(most[1:]) == {pair * 3 * 2 * (BUDGET + EVERY - 1)} and len(most) == ANSWER // EVERY
