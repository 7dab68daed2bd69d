"""Settings for what papers print where published code does otherwise, against their formulas in plain loops."""

import math
from typing import Any

import pytest
import torch

import kvbench.eviction.scores.window
from kvbench.cache.kernels.column_sums import column_sums
from kvbench.cache.kv_cache import KVCache
from kvbench.config.settings import build
from kvbench.eviction.allocation.layers import EntropyLayers, PreferenceLayers, PyramidLayers
from kvbench.eviction.allocation.shares import AllocationBudget
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from scripts.document_methods import composed
from tests.arrays import random_layer
from tests.eviction.scores.test_window_scores import norm2, seen_by_rows


def method(*words: str) -> tuple[Policy, Score]:
    """The policy and the score of a command line."""
    tree = composed(*words)
    return build("policy", tree["policy"]), build("score", tree["score"])


def ranked(layer: Any, policy: Policy, score: Score) -> torch.Tensor:
    """What a policy ranks in a layer, one row per cache head."""
    (ranking,) = Eviction(policy, score, TokenBudget(policy.protected + 1)).rank(KVCache((layer,), layer.lengths[0]))
    return ranking.scores.double()


@pytest.mark.parametrize(("policy", "window", "recent"), [("h2o_obcache", 16, 16), ("tova_obcache", 1, 0)])
def test_obcache_pools_its_scores_on_h2o_and_tova_too(policy: str, window: int, recent: int) -> None:
    """OBCache, C.2.1: a max-pooling function "for all SnapKV and OBCache-enhanced experiments", kernel 7, stride 1."""
    layer = random_layer(60, window=60, heads=6, kv_heads=2)
    a, z, v, o = seen_by_rows(layer, window)
    value = a.square() * norm2(v)  # equations 4 to 6
    key = (a * z).square() * norm2(v - o)
    cross = 2 * a.square() * z * (norm2(v) - (v * o).sum(-1))
    joint = (value + key + cross).sum(1)[:, : 60 - recent]
    grouped = joint.view(2, 3, -1).sum(1)
    count = grouped.shape[1]
    pooled = [[max(row[max(0, j - 3) : j + 4].tolist()) for j in range(count)] for row in grouped]
    scores = ranked(layer, *method(f"policy={policy}", "score=obcache_joint", "policy.pool={kind:max,size:7}"))
    assert torch.allclose(scores, torch.tensor(pooled).double(), rtol=1e-4)
    unpooled = ranked(layer, *method(f"policy={policy}", "score=obcache_joint"))
    assert torch.allclose(unpooled, grouped, rtol=1e-4, atol=1e-4 * float(grouped.max()))


def info(budget: int, protected: int, tokens: int, **more: Any) -> AllocationBudget:
    return AllocationBudget(budget=budget, sink=0, recent=protected, tokens=tokens, **more)


@pytest.mark.parametrize(
    ("layers", "weights", "budget", "protected", "whole_budgets"),
    [
        # LAVa, Algorithm 2: B_l = e_l / sum e * B, with B = 3 * 40
        (EntropyLayers(splits="budget"), (0.5, 0.3, 0.2), 40, 10, (60, 36, 24)),
        # equation 23: B_l = P_l / sum P * B
        (PreferenceLayers(splits="budget"), (6.0, 3.0, 1.0), 40, 10, (72, 36, 12)),
        # equation 21 without its sign error: B_2 = B / (beta L), B_0 = 2 B / L - B_2, a line between
        (PyramidLayers(beta=2, splits="budget"), (1.0, 1.0, 1.0), 40, 10, (60, 40, 20)),
        # B = (108, 7, 5), but the window of 10 stays in every layer
        (EntropyLayers(splits="budget"), (108.0, 7.0, 5.0), 40, 10, (100, 10, 10)),
        # no entropy anywhere: nothing tells the layers apart
        (EntropyLayers(splits="budget"), (0.0, 0.0, 0.0), 40, 10, (40, 40, 40)),
    ],
)
def test_layers_share_the_whole_budget_as_lava_prints_it(
    layers: Any, weights: tuple[float, ...], budget: int, protected: int, whole_budgets: tuple[int, ...]
) -> None:
    counts = layers(weights, info(budget, protected, 400))
    assert tuple(count + protected for count in counts) == whole_budgets
    published = layers(weights, info(budget, protected, 400, variant="official"))
    assert published == type(layers)(**{**vars(layers), "splits": "candidates"})(
        weights, info(budget, protected, 400, variant="official")
    )


def test_a_pyramid_of_whole_budgets_is_as_flat_as_the_prompt_is_short() -> None:
    """With 50 tokens the top of 2 * 40 - 20 = 60 does not fit: the line goes from 50 to 30."""
    assert PyramidLayers(beta=2, splits="budget")((1.0, 1.0, 1.0), info(40, 10, 50)) == (40, 30, 20)


def test_vatp_on_snapkv_changes_the_group_from_mean_to_max() -> None:
    """LAVa, Table 4, row VATP: |V[i]|_1 / w * sum A. It does not say how a group is merged; LAVa takes the maximum."""
    layer = random_layer(60, window=60, heads=6, kv_heads=2)
    attention = seen_by_rows(layer, 16)[0].sum(1)[:, :44]
    norms = layer.dense[1].double().abs().sum(-1)[:, :44]
    pooled = torch.tensor([[max(row[max(0, j - 3) : j + 4].tolist()) for j in range(44)] for row in attention]).double()
    for words, merged in (((), "amax"), (("policy.group=mean",), "mean")):
        policy, score = method("policy=snapkv", "protocol=common", "score=vatp", "policy.order=[pool,group]", *words)
        expected = getattr(pooled.view(2, 3, 44), merged)(1) * norms
        assert torch.allclose(ranked(layer, policy, score), expected, rtol=1e-4)
    assert method("policy=snapkv")[1].group == "mean" and method("policy=snapkv", "score=vatp")[1].group == "max"


@pytest.mark.parametrize("fused", [False, True])
def test_cakes_preference_reads_all_queries_as_lava_prints_it(monkeypatch: pytest.MonkeyPatch, fused: bool) -> None:
    """LAVa, equation 22: H = -sum over rows j of A^j log A^j; V = sum over j of VAR of A^t[j] over t in [j, N]."""
    policy, score = method("policy=cake", "policy.layers.queries=all", "policy.recent=0", "policy.window=4")
    layer = random_layer(40, window=40, heads=4, kv_heads=2)
    weights = seen_by_rows(layer, 40)[0]
    dispersion = shift = 0.0
    for head in weights:
        dispersion -= sum(float(a) * math.log(float(a)) for j, row in enumerate(head) for a in row[: j + 1])
        for j in range(39):  # the last column has one query, and no variance
            seen = [float(a) for a in head[j:, j]]
            mean = sum(seen) / len(seen)
            shift += sum((a - mean) ** 2 for a in seen) / (len(seen) - 1)
    if fused:
        monkeypatch.setattr(kvbench.eviction.scores.window, "column_sums_of", lambda kernels: column_sums)
    (ranking,) = Eviction(policy, score, TokenBudget(9)).rank(KVCache((layer,), 40))
    assert ranking.layer_weight == pytest.approx(dispersion * shift, rel=1e-5)
    window, _ = method("policy=cake", "policy.recent=0", "policy.window=4")
    (of_window,) = Eviction(window, score, TokenBudget(9)).rank(KVCache((layer,), 40))
    assert torch.equal(of_window.scores, ranking.scores) and of_window.layer_weight != ranking.layer_weight
