"""Whole pages and shared sets as functions: what is kept, of how many, and what is refused."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.allocation.allocation import UniformHeads, UniformLayers
from kvbench.eviction.allocation.heads import FlatHeads, MixHeads, SafeguardHeads
from kvbench.eviction.allocation.layers import EntropyLayers, GlobalLayers, PyramidLayers
from kvbench.eviction.budget import FractionBudget, TokenBudget
from kvbench.eviction.evict import Decision, Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.extras.conformance.properties.caches import recorded
from kvbench.extras.pages.pages import Pages
from kvbench.extras.sharing.sharing import Sharing
from kvbench.extras.stores.quantized import pack_cache
from kvbench.support.errors import UserError
from tests.steps import with_steps

SNAPKV = Policy("snapkv", window=16, recent=9, pool=Pool("max", 5))
evictions = st.builds(
    lambda page, page_score, share_score, **fields: Policy(
        **fields, steps=(Pages(page, page_score), Sharing("head", share_score))
    ),
    name=st.just("any"),
    window=st.integers(1, 12),
    pool=st.sampled_from([None, Pool("max", 7)]),
    sink=st.integers(0, 9),
    recent=st.integers(0, 12),
    layout=st.sampled_from(["kv_heads", "query_heads"]),
    page=st.sampled_from([1, 2, 7, 16]),
    page_score=st.sampled_from(["max", "mean"]),
    share_score=st.sampled_from(["mean", "max"]),
)
divided = st.sampled_from(
    [
        (UniformHeads(), UniformLayers()),
        (FlatHeads(), PyramidLayers(beta=4)),
        (MixHeads(alpha=0.3), EntropyLayers()),
        (SafeguardHeads(alpha=0.2), UniformLayers()),
        (UniformHeads(), GlobalLayers()),
    ]
)
tokens_of_prompt = st.integers(30, 97)


def masks(decision: Decision) -> torch.Tensor:
    return torch.stack(decision.kept)


def decided(policy: Policy, tokens: int, pairs: int, score: Any = None) -> Decision:
    """What is kept of a random cache; prompts that keep everything and budgets of no page are not of interest."""
    assume(pairs < tokens)
    eviction = Eviction(policy, score or Attention(), TokenBudget(pairs))
    try:
        return eviction.decide(recorded(tokens))
    except UserError as error:
        assume("cannot hold" not in str(error))
        raise


@settings(max_examples=20, deadline=None)
@given(policy=evictions, parts=divided, tokens=tokens_of_prompt, pairs=st.integers(20, 90))
def test_pages_stay_or_go_as_a_whole_within_the_budget(policy: Policy, parts: Any, tokens: int, pairs: int) -> None:
    """Protected tokens keep the pages they touch; pairs, and what an engine allocates for them, fit the budget."""
    policy = replace(policy, heads=parts[0], layers=parts[1])
    decision = decided(policy, tokens, pairs)
    kept, page = masks(decision), next((step.page for step in policy.steps if isinstance(step, Pages)), 1)
    for start in range(0, tokens, page):
        part = kept[..., start : start + page]
        assert (part.all(dim=-1) == part.any(dim=-1)).all()
        if start < policy.sink_tokens or min(start + page, tokens) > tokens - policy.recent_tokens:
            assert part.all()
    allocated = -(-kept.sum(dim=-1) // page) * page
    assert allocated.sum() <= pairs * allocated.numel()
    unspent = pairs * allocated.numel() - allocated.sum()
    assert unspent < page * allocated.numel()  # a page of each head at most
    assert torch.equal(decision.lengths, kept.sum(dim=-1))


@settings(max_examples=20, deadline=None)
@given(policy=evictions, tokens=tokens_of_prompt, pairs=st.integers(20, 90), score=st.sampled_from([None, KeyNorm()]))
def test_a_shared_set_is_one(policy: Policy, tokens: int, pairs: int, score: Any) -> None:
    by_layer, by_model = (masks(decided(with_steps(policy, share=s), tokens, pairs, score)) for s in ("layer", "model"))
    assert (by_layer == by_layer[:, :1]).all()
    assert (by_model == by_model[:1, :1]).all()
    assert by_model[..., : policy.sink_tokens].all() and by_model[..., tokens - policy.recent_tokens :].all()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"share": "layer", "heads": FlatHeads()}, "policy.heads=flat of any keeps more pairs in some heads"),
        ({"share": "layer", "layers": GlobalLayers()}, "policy.layers=global of any"),
        ({"share": "model", "layers": PyramidLayers()}, "use policy.layers=uniform, or policy.share=layer"),
        ({"page": 0}, "policy.page=0: allowed: 1 or more tokens"),
        ({"page": 16, "positions": "cache"}, "policy.positions=cache .*policy.share=model"),
        ({"page_score": "sum"}, "policy.page_score=sum is not allowed; allowed: mean, max"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        with_steps(Policy("any"), **fields)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("policy.page=16 schedule.decode_every=1 budget=128", "policy.page=16 of snapkv is decided once"),
        ("policy.share=model schedule.prefill_block=64 budget=128", "policy.share=model of snapkv is decided once"),
        ("policy.page=64 policy.sink=4 budget=100", "budget=100 cannot hold 2 pages of 64 tokens that protected"),
        ("policy.page=256 policy.recent=0 budget=200", "budget=200 cannot hold 1 page of 256 tokens: raise"),
        (
            "policy.share=layer score=kvzip_logit budget=128",
            "averages scores of several heads .*, but score kvzip_logit",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_a_run(words: str, says: str) -> None:
    (tree,) = combinations(parse(["policy=snapkv", *words.split()]))
    with pytest.raises(UserError, match=says):
        CellBuilder().cell(tree).check()


def test_a_share_of_a_prompt_that_holds_no_page_is_refused() -> None:
    eviction = Eviction(with_steps(SNAPKV, page=16), Attention(), FractionBudget(Decimal("0.25")))
    with pytest.raises(UserError, match=r"budget=0.25 is 15 of 60 tokens and cannot hold 1 page of 16 tokens that"):
        eviction.decide(recorded(60))


def test_one_set_with_pages_may_be_renumbered() -> None:
    policy = with_steps(SNAPKV, page=16, share="model", positions="cache", recent=0)
    smaller = Eviction(policy, Attention(), TokenBudget(40))(recorded(60))
    assert len({layer.lengths for layer in smaller.layers}) == 1 and len(set(smaller.layers[0].lengths)) == 1


def test_bytes_of_partly_filled_pages_are_allocated() -> None:
    """Of 60 tokens in pages of 16 the last page holds 12: four places of each head of three layers are empty."""
    cache = Eviction(with_steps(SNAPKV, page=16), Attention(), TokenBudget(40))(recorded(60))
    assert [layer.lengths for layer in cache.layers] == [(28, 28)] * 3
    assert Pages(16).unused_bytes(cache) == 3 * 2 * 4 * 2 * 10 * 4
    assert Pages(1).unused_bytes(cache) == Pages(14).unused_bytes(cache) == 0
    packed = pack_cache(cache, "int8")
    by_layer = [replace(packed, layers=(layer,)).bytes_held for layer in packed.layers]
    assert Pages(16).unused_bytes(packed) == sum(held * 8 // 56 for held in by_layer)
