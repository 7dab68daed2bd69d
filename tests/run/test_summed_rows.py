"""Scores over all queries of a prompt are summed while it is read: with the bits of recorded queries, none of which is
held.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch

from kvbench.eviction.allocation.layers import PreferenceLayers
from kvbench.eviction.evict import raw_scores
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention, AttentionMax
from kvbench.eviction.scores.obcache import ExactZeroed, OBCacheJoint
from kvbench.eviction.scores.score import Score
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.run import memory
from kvbench.run.memory import observed_rows
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from tests.models.conftest import tiny_llama
from tests.models.counted import small_engine
from tests.pretended_gpu import PretendedGpu
from tests.run.test_prefill_job import cells, outcomes, samples_of

H2O = Policy("h2o", window="all")
SUMMED: tuple[tuple[Policy, Score], ...] = (
    (H2O, Attention()),
    (replace(H2O, reduce="mean"), Attention(power=2, diagonal=False)),
    (replace(H2O, reduce="max"), AttentionMax()),
    (H2O, OBCacheJoint()),
)


@pytest.mark.parametrize("tokens", [200, 700])
def test_sums_have_the_bits_of_scores_of_recorded_queries(tokens: int) -> None:
    """By the log-sum-exp of the pass above 512 rows; read at once, and in blocks that a score's blocks divide."""
    model = tiny_llama(max_position_embeddings=1024, num_hidden_layers=2)
    bridge.attach(model)
    ids, skipped = torch.arange(tokens) * 7 % 90, 3
    for block in (512, 2048):
        engine = Engine(model, prefill_chunk=block)
        summed = engine.prefill(ids, summed={(score, policy.reduce, skipped) for policy, score in SUMMED}).cache
        recorded = engine.prefill(ids, {tokens}).cache
        for (policy, score), (layer, other) in product(SUMMED, zip(summed.evictable, recorded.evictable, strict=True)):
            assert not layer.windows and other.windows and not other.recordings
            skipping = replace(policy, window_skips=skipped)
            raws = [raw_scores(each.without_newest(skipped), skipping, score) for each in (layer, other)]
            assert torch.equal(*raws) and raws[0].shape[1] == tokens - skipped, score


def test_sums_on_a_gpu_are_those_of_recorded_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of one array, read in two blocks; the pretended GPU computes with our kernel, and nobody waits for it."""
    distinct = SUMMED[1:]  # a mean and a sum of attention are the same kernel's sum
    with PretendedGpu() as gpu:
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("the host waited"))
        engine = small_engine(2, kv_heads=2, max_batch=2, kernels="triton", prefill_chunk=16)
        engine.model.float()
        prefilled = engine.prefill(torch.arange(20), summed={(score, policy.reduce, 0) for policy, score in distinct})
        assert len(prefilled.seconds) == len(distinct) and all(prefilled.seconds.values())
        (stack,), (other,) = prefilled.cache.stacked, engine.prefill(torch.arange(20), {20}).cache.stacked
        assert stack.layers == 2 and not stack.windows
        for policy, score in distinct:
            raw, expected = (raw_scores(each, policy, score).cpu() for each in (stack, other))
            assert torch.allclose(raw, expected, rtol=1e-4, atol=1e-6) and raw.any()
        assert not gpu.mixed


@pytest.fixture(scope="module")
def model(load: Callable[..., LoadedModel]) -> LoadedModel:
    return load(max_batch=6)


def test_rows_are_those_of_recorded_queries(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cells("0.4")[1]
    wanted = tuple(first.with_method(policy=policy, score=score) for policy, score in SUMMED)
    job = PrefillJob({0: wanted, 2: wanted})
    summed = run_prefill_job(model, job, samples_of(0, 2), "here").rows
    monkeypatch.setattr(memory, "sums_rows", lambda policy, score: False)
    assert outcomes(summed) == outcomes(run_prefill_job(model, job, samples_of(0, 2), "here").rows)
    assert all(row.error is None and row.evict_seconds and row.prefill_seconds for row in summed)


def test_what_needs_the_queries_has_them_recorded() -> None:
    """A score bounded by later values, a mean over the rows that see a pair, layers that read rows, later evictions."""
    cell = cells("0.4")[1].with_method(policy=H2O, score=Attention())
    assert observed_rows(cell, 0, 50) == (set(), (Attention(), "sum", 0))
    whole = cell.with_method(budget=cells("1.0")[1].budget)
    assert observed_rows(whole, 0, 50) == (set(), None)
    for other in (
        cell.with_method(score=ExactZeroed()),
        cell.with_method(policy=replace(H2O, reduce="observed_attention")),
        cell.with_method(policy=replace(H2O, layers=PreferenceLayers(tau1=1.6, tau2=0.4))),
        replace(cell, schedule=replace(cell.schedule, decode_every=1)),
    ):
        assert observed_rows(other, 0, 50) == ({50}, None)
