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
from tests.eviction.scores.test_window_scores import seen_by_rows


def method(*words: str) -> tuple[Policy, Score]:
    """The policy and the score of a command line."""
    tree = composed(*words)
    return build("policy", tree["policy"]), build("score", tree["score"])


def ranked(layer: Any, policy: Policy, score: Score) -> torch.Tensor:
    """What a policy ranks in a layer, one row per cache head."""
    (ranking,) = Eviction(policy, score, TokenBudget(policy.protected + 1)).rank(KVCache((layer,), layer.lengths[0]))
    return ranking.scores.double()


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
