"""Every score on every policy, as their files are: it cuts, goes on cutting where the policy does, or is refused."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.config.entries import options
from kvbench.config.settings import build
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from scripts.document_methods import composed, refusals
from tests.arrays import random_cache

TOKENS, BUDGET = 83, 47
FOUND = lru_cache(refusals)
CACHE = lru_cache(lambda: random_cache(TOKENS, window=TOKENS))


@lru_cache
def score_of(name: str) -> Score:
    return build("score", composed("policy=plain", f"score={name}")["score"])


def goes_on(tree: dict[str, Any], rule: Policy, score: str) -> None:
    """A cut leaves some of the cache, and a cut after another token as much, where the policy has such."""
    eviction = Eviction(rule, score_of(score), TokenBudget(BUDGET))
    cache = CACHE()
    decision = eviction.decide(cache)
    smaller = eviction.evict(cache, decision)
    assert 0 < smaller.pairs < cache.pairs
    if tree["schedule"]["decode_every"] is None:
        return
    whole = rule.keeps_whole
    evictor = IncrementalEviction(eviction, capacity_after(eviction, cache, decision), decoding=True)
    for layer in evictor.remember(cache, decision, smaller).evictable:
        grown = layer.append(torch.randn(2, 1, 10), torch.randn(2, 1, 10), TOKENS)
        left = evictor.step(grown, attend_layer(torch.randn(6, 1, 10), grown, AttentionParams(0.3))).layer
        for before, after in zip(layer.lengths, left.lengths, strict=True):
            assert after == before or (whole and before == TOKENS and after == TOKENS + 1)


@pytest.mark.parametrize("policy", options("policy"))
def test_every_score_runs_or_says_why_not(policy: str) -> None:
    tree = composed(f"policy={policy}")
    rule = build("policy", tree["policy"]).resolve(5, TOKENS, TokenBudget(BUDGET))
    rule = replace(rule, recent=16) if rule.protected > BUDGET else rule
    takes_scores = "score" in tree["policy"]["accepts"]
    scores = {score: why for (host, score), why in FOUND().items() if host == policy}
    assert bool(scores) == takes_scores
    for score, why in scores.items():
        try:
            if why:
                assert any(fix in why for fix in ("use ", "goes with", "choose ")), why
            else:
                goes_on(tree, rule, score)
        except Exception as error:
            error.add_note(f"policy={policy} score={score}")
            raise


def test_what_is_refused_is_what_makes_no_sense() -> None:
    """One reason a score, and no policy refuses a score of attention."""
    refused = {score for (_, score), why in FOUND().items() if why}
    assert refused == {
        *("cake", "cap", "compactor", "compactor_vllm", "criticalkv", "expected_attention", "head_table", "key_diff"),
        *("key_norm", "kvgrad", "kvpress", "kvzap", "kvzip", "kvzip_logit", "kvzip_plus", "leverage", "non_causal"),
        *("rkv", "triattention"),
    }
