"""Expected attention: its formula, and that the formula is the expectation it claims to be."""

from dataclasses import replace

import pytest
import torch

from kvbench.cache.kv_cache import FutureQueryStats, KVCache, PredictedQueries
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.expected_attention import ExpectedAttention
from tests.arrays import random_layer

LAYER = random_layer(50, window=16)
STATS = LAYER.future_queries[0]


def ranked(score: ExpectedAttention, **fields: int) -> torch.Tensor:
    return Eviction(Policy("p", **fields), score, TokenBudget(20)).rank(KVCache((LAYER,), 50))[0].scores  # type: ignore[arg-type]


@pytest.mark.parametrize("value_norm", [True, False])
@pytest.mark.parametrize("covariance", [True, False])
def test_score_is_its_formula(covariance: bool, value_norm: bool) -> None:
    """In float64; the first four tokens are left out and as good as the best."""
    keys, values = (part.double() for part in LAYER.dense)
    wide = keys.repeat_interleave(3, 0)[:, 4:]
    logits = (wide * STATS.mean.double()[:, None]).sum(-1) / 10**0.5
    if covariance:
        logits += torch.einsum("hnd,hde,hne->hn", wide, STATS.covariance.double(), wide) / 20
    expected = logits.softmax(1).view(2, 3, 46).mean(1) + 0.01
    if value_norm:
        expected = expected * values[:, 4:].norm(dim=-1)
    scores = ranked(ExpectedAttention(covariance=covariance, value_norm=value_norm, epsilon=0.01)).double()
    assert torch.allclose(scores[:, 4:], expected, rtol=1e-4)
    assert (scores[:, :4] == scores.max()).all()


def test_sinks_stay_before_all_others() -> None:
    kept = Eviction(Policy("p"), ExpectedAttention(), TokenBudget(4))(KVCache((LAYER,), 50))
    assert kept.layers[0].positions.tolist() == [0, 1, 2, 3] * 2


def test_the_exponent_is_the_expectation_of_normal_queries() -> None:
    """200 000 queries drawn from mean and covariance: their mean of exp(q.k) has the score's ratios."""
    generator = torch.Generator().manual_seed(1)
    root = 0.2 * torch.randn(6, 10, 10, generator=generator)
    statistics = FutureQueryStats(
        PredictedQueries(4, 512), torch.randn(6, 10, generator=generator), root @ root.mT, 10**-0.5
    )
    layer = replace(LAYER, future_queries=(statistics,))
    scores = ExpectedAttention(value_norm=False)(layer, None, "sum")[:, 4:]
    keys = layer.dense[0].repeat_interleave(3, 0)[:, 4:]
    total = torch.zeros(6, 46)
    for _ in range(2):
        drawn = statistics.mean[:, None] + torch.randn(6, 100_000, 10, generator=generator) @ root.mT
        total += (drawn @ keys.mT * 10**-0.5).exp().mean(1)
    assert torch.allclose(total / total.sum(1, keepdim=True), scores, rtol=0.02)


def test_what_cannot_be_predicted_says_so() -> None:
    with pytest.raises(ValueError, match="no future queries were recorded for"):
        ExpectedAttention(future=9)(LAYER, None, "sum")
    with pytest.raises(ValueError, match="leaves out the first 4 tokens, but the prompt has 3"):
        ExpectedAttention()(random_layer(3), None, "sum")
    with pytest.raises(ValueError, match=r"score\.future=0 1 or more"):
        ExpectedAttention(future=0)
    with pytest.raises(ValueError, match=r"score\.epsilon=-1"):
        ExpectedAttention(epsilon=-1)
