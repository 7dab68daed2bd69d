"""KVzip by logits: what is never repeated ranks lowest, and heads compare only once their logits are standardised."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.eviction.allocation.heads import BinaryHeads, FlatHeads, MixHeads, SafeguardHeads, SharedHeads
from kvbench.eviction.allocation.layers import GlobalLayers
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.kvzip import KVzip
from tests.arrays import random_layer

LOGIT = KVzip(softmax=False, name="kvzip_logit")
STANDARD = replace(LOGIT, zscore=True)
GLOBAL = Policy("kvzip", window=1, sink=3, layers=GlobalLayers())


def probed(head: int = 3, scale: float = 1.0, shift: float = 0.0, index: int = 0) -> LayerCache:
    """Six query heads over two KV heads, 40 tokens; those of the second KV head are scaled and shifted."""
    record = torch.randn(6, 40, generator=torch.Generator().manual_seed(5 + index))
    record[3:] = record[3:] * scale + shift
    record[:, :head] = 0
    layer = random_layer(40, index=index)
    return replace(layer, recordings={score.inputs.repeat: record for score in (LOGIT, KVzip())})


def test_what_was_never_repeated_ranks_lowest() -> None:
    """Its record is 0, which is more than a negative logit."""
    raw = LOGIT(probed(shift=-9.0), None, "max")
    assert (raw[:, :3] == raw[:, 3:].amin(dim=1, keepdim=True)).all()
    assert torch.equal(raw[:, 3:], probed(shift=-9.0).recordings[LOGIT.inputs.repeat][:, 3:])
    assert (KVzip()(probed(), None, "max")[:, :3] == 0).all()


def test_without_a_repetition_nothing_is_standardised() -> None:
    layer = probed(head=40)
    raw = STANDARD(layer, None, "max")
    assert (raw == 0).all() and torch.equal(STANDARD.refine(raw[:2], layer), raw[:2])


@given(scale=st.floats(0.1, 20), shift=st.floats(-30, 30))
def test_standardised_logits_do_not_know_how_large_a_head_is(scale: float, shift: float) -> None:
    """Whatever the scale of one head, the same pairs stay; plain logits would give it all or nothing."""
    caches = [
        KVCache((probed(scale=factor, shift=offset), probed(index=1)), 40)
        for factor, offset in ((1, 0), (scale, shift))
    ]
    first, second = (Eviction(GLOBAL, STANDARD, TokenBudget(17)).decide(cache) for cache in caches)
    assert all(torch.equal(plain, scaled) for plain, scaled in zip(first.kept, second.kept, strict=True))


@pytest.mark.parametrize(
    "heads", [FlatHeads(), MixHeads(), SafeguardHeads(), BinaryHeads()], ids=lambda heads: heads.kind
)
def test_heads_that_compete_take_no_plain_logits(heads: object) -> None:
    policy = Policy("p", window=1, heads=heads)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"heads do not compare: use score\.zscore=true"):
        Eviction(policy, LOGIT, TokenBudget(9))
    Eviction(policy, STANDARD, TokenBudget(9))
    Eviction(replace(policy, heads=SharedHeads()), LOGIT, TokenBudget(9))


@pytest.mark.parametrize("score", [KVzip(), STANDARD], ids=lambda score: score.name)
def test_whole_heads_that_a_repetition_chose_go_on(score: KVzip) -> None:
    """A step of decoding asks nothing of what was repeated before the cut."""
    policy = Policy("duo", window=1, sink=2, recent=5, heads=BinaryHeads(), layers=GlobalLayers())
    cache = KVCache((probed(),), 40)
    eviction = Eviction(policy, score, TokenBudget(24))
    decision = eviction.decide(cache)
    (layer,) = eviction.evict(cache, decision).evictable
    assert sorted(layer.lengths) == [7, 40]
    grown = layer.append(torch.randn(2, 1, 10), torch.randn(2, 1, 10), 40)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, cache, decision), decoding=True)
    rows = attend_layer(torch.randn(6, 1, 10), grown, AttentionParams(0.3))
    assert sorted(evictor.step(grown, rows).layer.lengths) == [7, 41]


def test_one_value_everywhere_is_no_number_to_divide_by() -> None:
    layer = replace(probed(), recordings={LOGIT.inputs.repeat: torch.full((6, 40), 2.5)})
    (ranking,) = Eviction(GLOBAL, STANDARD, TokenBudget(20)).rank(KVCache((layer,), 40))
    assert (ranking.scores == 0).all()
