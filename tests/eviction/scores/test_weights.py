"""VATP and LAVa: what multiplies attention, where, and over which columns."""

import pytest
import torch

from kvbench.cache.kv_cache import KVCache, from_dense
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool, Weight, pool_and_reduce
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.weighted import Lava, Vatp
from tests.arrays import random_cache, random_layer

LAYER = random_layer(50, window=8)
ATTENTION = Attention()(LAYER, LAYER.windows[0], "mean")
POOL = Pool("max", 7)


def ranked(score: Score, **fields: object) -> torch.Tensor:
    policy = Policy("p", window=8, reduce="mean", **fields)  # type: ignore[arg-type]
    return Eviction(policy, score, TokenBudget(20)).rank(KVCache((LAYER,), 50))[0].scores


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("order", [("pool", "group"), ("group", "pool")])
def test_vatp_weighs_each_token_after_or_before_pooling(norm: int, order: tuple[str, str]) -> None:
    norms = LAYER.dense[1][:, :44].norm(p=norm, dim=-1).repeat_interleave(3, 0)
    expected = {"after_pool": POOL(ATTENTION[:, :44]) * norms, "before_pool": POOL(ATTENTION[:, :44] * norms)}
    for place, weighed in expected.items():
        scores = ranked(Vatp(norm=norm, weight=place), pool=POOL, recent=6, order=order)  # type: ignore[arg-type]
        assert torch.allclose(scores, weighed.view(2, 3, 44).amax(1), rtol=1e-5)


def test_lava_weighs_by_the_largest_norm_before_the_recent_tokens() -> None:
    """The largest value of all is protected, and does not count."""
    keys, values = (part.clone() for part in LAYER.dense)
    values[:, 47] = 1000.0
    grown = from_dense(0, 6, keys, values, LAYER.windows)
    policy = Policy("p", window=8, reduce="mean", recent=6, order=("pool", "group"), pool=POOL)
    scores = Eviction(policy, Lava(), TokenBudget(20)).rank(KVCache((grown,), 50))[0].scores
    largest = LAYER.dense[1][:, :44].abs().sum(-1).amax(1)
    expected = POOL(ATTENTION[:, :44]).view(2, 3, 44).amax(1) * largest[:, None]
    assert torch.allclose(scores, expected, rtol=1e-5)


def test_lava_can_look_at_every_value() -> None:
    """As equation 5 writes the maximum: the recent tokens, which are protected, count too."""
    keys, values = (part.clone() for part in LAYER.dense)
    values[:, 47] = 1000.0
    cache = KVCache((from_dense(0, 6, keys, values, LAYER.windows),), 50)
    policy = Policy("p", window=8, reduce="mean", recent=6, pool=POOL)
    near, far = (
        Eviction(policy, Lava(over=over), TokenBudget(20)).rank(cache)[0].scores for over in ("candidates", "all")
    )
    largest = LAYER.dense[1][:, :44].abs().sum(-1).amax(1)
    assert torch.allclose(far, near / largest[:, None] * 10000, rtol=1e-5)


def test_a_mean_over_the_layer_sees_the_weights_where_they_stand() -> None:
    """Weights of different KV heads do not commute with the mean over all heads of the layer."""
    scores, weight = torch.rand(6, 10), Weight(torch.rand(2, 10))
    first = pool_and_reduce(scores, None, "layer_mean", ("pool", "group"), 2, weight)
    wide = weight.values.repeat_interleave(3, 0)
    assert torch.allclose(first, (scores * wide).mean(0).expand(2, -1))
    second = pool_and_reduce(scores, None, "layer_mean", ("group", "pool"), 2, weight)
    assert torch.allclose(second, scores.mean(0) * weight.values)


def test_nothing_left_to_weigh_is_nothing_ranked() -> None:
    """All tokens but none of the candidates: sink and recent fill the budget."""
    cache = random_cache(30)
    for score in (Lava(), Vatp()):
        kept = Eviction(Policy("p", recent=12), score, TokenBudget(12))(cache)
        assert kept.lengths.tolist() == [[12, 12]] * 3
