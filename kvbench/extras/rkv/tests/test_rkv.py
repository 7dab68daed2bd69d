"""R-KV by its formula, in float64 and loops, and after tokens that were generated."""

import pytest
import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction, rank_layer, raw_scores
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.extras.rkv.rkv import RKV
from tests.arrays import random_layer

POLICY = Policy("rkv", window=8, recent=8, pool=Pool("max", 7))


def redundancy(keys: Tensor, threshold: float, unlike: str) -> Tensor:
    rows = []
    for head in keys.double():
        tokens = len(head)
        total = torch.zeros(tokens, dtype=torch.float64)
        for i in range(tokens):
            cosines = torch.nn.functional.cosine_similarity(head[i : i + 1], head, dim=1)
            cosines[i] = 0
            alike = [j for j in range(tokens) if cosines[j] > threshold]
            if alike or unlike == "first":
                cosines[max(alike, default=0)] = 0
            total += cosines / tokens
        rows.append(total.softmax(dim=0))
    return torch.stack(rows)


@pytest.mark.parametrize("unlike", ["first", "none"])
def test_the_newest_of_several_like_keys_is_no_repetition(unlike) -> None:
    layer = random_layer(90)
    redundancies = RKV(threshold=0.6, unlike=unlike).redundancy(layer.dense[0])
    torch.testing.assert_close(redundancies.double(), redundancy(layer.dense[0], 0.6, unlike), rtol=1e-5, atol=1e-9)
    other = redundancy(layer.dense[0], 0.6, "none" if unlike == "first" else "first")
    assert not torch.allclose(redundancies.double(), other, rtol=1e-5)


def test_a_repeated_key_goes_before_its_newest_copy() -> None:
    """Three copies of a key among others that are orthogonal to it: the two older ones are the most redundant."""
    keys = torch.eye(12)[None].repeat(2, 1, 1)
    keys[:, [2, 5, 9]] = keys[:, [2]]
    assert set(RKV().redundancy(keys)[0].topk(2).indices.tolist()) == {2, 5}


def test_attention_over_the_whole_prompt_has_no_token_before_the_window() -> None:
    layer = random_layer(20, window=20)
    importance = RKV()(layer, layer.observed(20), "mean")
    torch.testing.assert_close(importance.sum(dim=1), torch.ones(2))
    assert (importance[:, -1] > 0).all()
    inside = RKV()(layer, layer.observed(8), "mean")
    torch.testing.assert_close(inside.sum(dim=1), torch.ones(2))
    assert (inside[:, -8:] == 0).all()


def test_what_was_generated_is_ranked_by_its_newest_rows() -> None:
    """An eviction after 12 tokens keeps what an eviction of a prompt of all tokens keeps, with a window of 8."""
    whole = random_layer(50, window=50)
    queries = whole.windows[0].queries
    keys, values = whole.dense
    before = random_layer(50, window=50).select(torch.arange(50).expand(2, 50) < 38)
    grown = before.append(keys[:, 38:], values[:, 38:], 38)
    eviction = Eviction(POLICY, RKV(), TokenBudget(30))
    step = IncrementalEviction(eviction, 30, decoding=True).step(
        grown, attend_layer(queries[:, 38:], grown, AttentionParams(10**-0.5))
    )
    ranking = rank_layer(whole, POLICY, RKV(), raw_scores(whole, POLICY, RKV()))
    kept = {*ranking.order[0, :22].tolist(), *range(42, 50)}
    assert set(step.layer.positions[:30].tolist()) == kept


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"score.importance=1.5: .* from 0 to 1, e.g. 0.1"):
        RKV(importance=1.5)
