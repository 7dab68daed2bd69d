"""What every score on every policy of conf/ must do, whoever added it: one matrix, derived from the files."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar

import pytest
import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.config.entries import options
from kvbench.config.settings import build
from kvbench.eviction.evict import check_host
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.scores.score import Reduce, Score
from kvbench.extras.conformance.properties import EDGE_CASES, INCREMENTAL, SINGLE, Property, check, failures
from kvbench.extras.conformance.properties.caches import WINDOWED
from tests.composed import composed, needed

TREES = {policy: composed(f"policy={policy}", *needed("policy", policy)) for policy in options("policy")}
MATRIX = [
    (policy, score)
    for (policy, tree), score in product(TREES.items(), options("score"))
    if "score" in tree["policy"]["accepts"] or score == tree["score"]["name"]
]
"""Policies that take no score have their own."""
HOSTS, GUESTS = ("snapkv", "ada_snapkv"), ("obcache_joint",)


def choice(*hosts: str) -> pytest.MarkDecorator:
    """Every score on the hosts and every policy with one score; what is left is too many for every day.

    The matrix of tests/eviction has all pairs of the policies that take a score.
    """
    scores = Counter(policy for policy, _ in MATRIX)
    often = [policy in hosts or score in GUESTS or scores[policy] == 1 for policy, score in MATRIX]
    pairs = [
        pytest.param(*pair, marks=() if is_often else pytest.mark.slow, id="-".join(pair))
        for pair, is_often in zip(MATRIX, often, strict=True)
    ]
    return pytest.mark.parametrize(("policy", "score"), pairs)


some = choice(*HOSTS)


def refused(policy: Policy, score: Score) -> bool:
    """No distribution of signed scores, no variance of one row, no comparing of heads' logits, no pairs in a table."""
    signed = ("key_norm", "key_diff", "kvpress", "kvzip_logit", "rkv", "triattention")
    signed += ("compactor", "compactor_vllm", "leverage", "non_causal", "kvzap")
    shares = policy.layers.kind == "entropy" and score.name in signed
    ranks = policy.layers.kind == "global" or not policy.heads.even
    if score.name == "head_table":
        return policy.heads.kind != "binary"
    return shares or (ranks and score.name == "kvzip_logit") or (policy.window == 1 and score.name == "cake")


@lru_cache
def combination(policy: str, score: str) -> tuple[Policy, Score] | None:
    """What the command line builds; None where it is refused, which it then must be."""
    built = build("policy", TREES[policy]["policy"])
    own = build("score", composed("policy=plain", f"score={score}", *needed("score", score))["score"])
    if refused(built, own):
        with pytest.raises(ValueError, match=r"policy\."):
            check_host(built, own)
        return None
    return built, own


def holds(properties: tuple[Property, ...], policy: str, score: str) -> None:
    if pair := combination(policy, score):
        for requirement in properties:
            requirement(*pair)


@some
def test_the_budget_is_spent(policy: str, score: str) -> None:
    holds(SINGLE[:1], policy, score)


@some
def test_one_cut(policy: str, score: str) -> None:
    holds(SINGLE[1:], policy, score)


@some
def test_odd_input(policy: str, score: str) -> None:
    holds(EDGE_CASES, policy, score)


@choice("snapkv")  # several evictions take longest
def test_cuts_that_follow_each_other(policy: str, score: str) -> None:
    holds(INCREMENTAL, policy, score)


class Remembering(Attention):
    """What was seen before decides: the mistake of published code that keeps a budget or mask between samples."""

    seen: ClassVar[list[int]] = []

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        self.seen.append(1)
        return super().__call__(layer, window, reduce).roll(len(self.seen), dims=1)


class Peeking(KeyNorm):
    """Reads rows that it does not declare."""

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        weights = layer.windows[0].queries.sum() if layer.windows else 0.0
        return super().__call__(layer, window, reduce) * weights


class Overflowing(Attention):
    """Weights in the model's dtype over what is left of one: 1 / (1 - a) is inf where a row gives all to a pair."""

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        weights = super().__call__(layer, window, "max")
        return weights / (1 - weights.to(torch.bfloat16).float())


class Summing(Attention):
    """One number a head."""

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return super().__call__(layer, window, reduce).sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Hoarding(Policy):
    """Keeps a budget of its own."""

    def budget_info(self, budget: int, tokens: int):  # type: ignore[no-untyped-def]
        return super().budget_info(max(self.protected, budget - 1), tokens)


@pytest.mark.parametrize(
    ("policy", "score", "says"),
    [
        (WINDOWED, Remembering(), "samples_do_not_see_each_other"),
        (WINDOWED, Peeking(), "only_declared_inputs_are_read"),
        (WINDOWED, Overflowing(), "not finite"),
        (WINDOWED, Summing(), r"score attn of layer 0 has shape \[6, 1\], expected \[2, 97\] or \[6, 97\]"),
        (
            Hoarding("hoarding"),
            Attention(),
            "budget_is_spent_and_protected_tokens_stay: 6 KV pairs",
        ),
    ],
    ids=["remembers", "peeks", "overflows", "sums", "hoards"],
)
def test_a_property_that_does_not_hold_is_named(policy: Policy, score: Score, says: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=says):
        check(score, policy)


@dataclass(frozen=True)
class Faulty(Score):
    """It raises, whatever it is called with."""

    name: str = "faulty"

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return list[Scores]().pop()


def test_a_fault_is_told_once_for_all_properties() -> None:
    (told,) = failures(WINDOWED, Faulty())
    count, _, message = told.partition(" of ")
    assert int(count) > 8 and message.endswith(" properties: score faulty: IndexError: pop from empty list")
