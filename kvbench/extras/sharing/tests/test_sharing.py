"""One set for the heads of a layer, or for all layers: whose scores count how much."""

from dataclasses import replace

import torch

from kvbench.eviction.allocation.heads import SharedHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Decision, Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.extras.conformance.properties.caches import recorded
from tests.steps import with_steps

SNAPKV = Policy("snapkv", window=16, recent=9, pool=Pool("max", 5))


def masks(decision: Decision) -> torch.Tensor:
    return torch.stack(decision.kept)


def test_a_mean_over_the_heads_is_that_of_shared_heads() -> None:
    """Bit for bit what `heads=shared` keeps, in repeated evictions too."""
    eviction, cache = Eviction(with_steps(SNAPKV, share="layer"), Attention(), TokenBudget(30)), recorded(60)
    shared = Eviction(replace(SNAPKV, heads=SharedHeads()), Attention(), TokenBudget(30))
    assert torch.equal(masks(eviction.decide(cache)), masks(shared.decide(cache)))
    steps = []
    for each in (eviction, shared):
        decision = each.decide(cache)
        incremental = IncrementalEviction(each, capacity_after(each, cache, decision), decoding=True)
        layer = incremental.remember(cache, decision, each.evict(cache, decision)).layers[1]
        new = torch.ones(2, 1, 10)
        layer = layer.append(new, new, 60)
        rows = replace(cache.layers[1].windows[0].last(1), lse=torch.zeros(6, 1))
        steps.append(incremental.step(layer, rows).layer.positions)
    first, second = steps[0].view(2, -1).tolist()
    assert torch.equal(*steps) and set(first) == set(second)


def test_scores_of_layers_count_alike_whatever_their_scale() -> None:
    """One set for all layers does not change if the scores of one layer are a thousand times larger, or shifted."""
    policy, cache = with_steps(SNAPKV, share="model"), recorded(60)
    rankings = Eviction(policy, Attention(), TokenBudget(30)).rank(cache)
    scaled = (rankings[0].mapped(lambda scores: 1000 * scores - 7), *rankings[1:])
    for merge in ("mean", "max"):
        eviction = Eviction(with_steps(policy, share_score=merge), Attention(), TokenBudget(30))
        assert torch.equal(masks(eviction.decide(cache, rankings)), masks(eviction.decide(cache, scaled)))


def test_the_maximum_keeps_what_a_single_head_wants() -> None:
    cache, policy = recorded(60), with_steps(SNAPKV, share="model", recent=2, pool=None)
    rankings = list(Eviction(policy, Attention(), TokenBudget(12)).rank(cache))
    generator = torch.Generator().manual_seed(1)
    flat = torch.rand(rankings[0].scores.shape, generator=generator)
    flat[:, 20:30] += 9
    wanted = torch.rand(flat[0].shape, generator=generator) * 1e-3
    wanted[40] = 1.0
    alone = flat.clone()
    alone[1] = wanted
    chosen = [replace(r, scores=s, unpooled=s) for r, s in zip(rankings, (flat, alone, flat), strict=True)]
    by = {m: Eviction(with_steps(policy, share_score=m), Attention(), TokenBudget(12)) for m in ("mean", "max")}
    assert masks(by["max"].decide(cache, chosen))[..., 40].all()
    assert not masks(by["mean"].decide(cache, chosen))[..., 40].any()
