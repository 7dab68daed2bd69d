"""What every score on every policy of conf/ must do, whoever added it: one matrix, derived from the files."""

from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest
import torch
from torch import Tensor

from kvbench.budget import Tokens
from kvbench.cache import KVCache, Window
from kvbench.cli.compose import options
from kvbench.cli.settings import build
from kvbench.eviction import Eviction, check_host
from kvbench.policy import Policy
from kvbench.scores.score import Score
from tests.arrays import layer_of, random_cache
from tests.test_conf import composed, needed

TOKENS, BUDGET, LAYERS = 97, 53, 3
MATRIX = list(product(options("policy"), options("score")))
every = pytest.mark.parametrize(("policy", "score"), MATRIX, ids=lambda name: name)


def refused(policy: Policy, score: Score) -> bool:
    """No distribution of signed scores, no variance of one row, no comparing of heads' logits, no pairs in a table."""
    shares = policy.layers.kind == "entropy" and score.name in ("key_norm", "key_diff", "kvzip_logit")
    ranks = policy.layers.kind == "global" or policy.heads.kind not in ("uniform", "shared")
    if score.name == "head_table":
        return policy.heads.kind != "binary"
    return shares or (ranks and score.name == "kvzip_logit") or (policy.window == 1 and score.name == "cake")


@lru_cache
def eviction(policy: str, score: str, budget: int = BUDGET) -> Eviction | None:
    """The combination as the command line builds it; None where it is refused, which it then must be."""
    built = build("policy", composed(f"policy={policy}")["policy"]).of_prompt(head=5, tokens=TOKENS, pairs=BUDGET)
    own = build("score", composed("policy=plain", f"score={score}", *needed("score", score))["score"])
    if refused(built, own):
        with pytest.raises(ValueError, match=r"policy\."):
            check_host(built, own)
        return None
    return Eviction(built, own, Tokens(budget))


@lru_cache
def cache(seed: int = 0) -> KVCache:
    """Every query is recorded, so that every window is served."""
    return random_cache(TOKENS, LAYERS, seed=seed, window=TOKENS)


def left_over(policy: Policy, tokens: int = TOKENS) -> int:
    """What a budget need not spend is less than this: whole heads leave what does not pay for one more."""
    return tokens - policy.protected if policy.heads.kind == "binary" else 1


def kept(eviction: Eviction, cache: KVCache) -> Tensor:
    """The decision as one mask."""
    return torch.stack(eviction.decide(cache).kept)


@every
def test_the_budget_is_spent_exactly_and_protected_tokens_stay(policy: str, score: str) -> None:
    if found := eviction(policy, score):
        decision = found.decide(cache())
        smaller = found.cut(cache(), decision)
        assert smaller.pairs == int(decision.lengths.sum())
        assert 0 <= BUDGET * 2 * LAYERS - smaller.pairs < left_over(found.policy)
        for mask, layer in zip(decision.kept, smaller.layers, strict=True):
            assert mask[:, : found.policy.sink].all() and mask[:, TOKENS - found.policy.recent :].all()
            assert layer.positions.tolist() == mask.nonzero()[:, 1].tolist()


@every
def test_a_budget_for_everything_gives_the_cache_itself(policy: str, score: str) -> None:
    for budget in (TOKENS, TOKENS + 40):
        if found := eviction(policy, score, budget):
            assert found(cache()) is cache()


@every
def test_other_samples_before_it_change_nothing(policy: str, score: str) -> None:
    if found := eviction(policy, score):
        first = kept(found, cache())
        kept(found, cache(seed=1))
        assert torch.equal(first, kept(found, cache()))
        fresh = Eviction(found.policy, found.score, found.budget)
        assert torch.equal(first, kept(fresh, random_cache(TOKENS, LAYERS, window=TOKENS)))


@every
def test_evidence_that_is_not_asked_for_is_not_read(policy: str, score: str) -> None:
    """Without any record where none is asked for; with rows outside the window spoilt where some are."""
    if (found := eviction(policy, score)) is None:
        return
    asks = found.score.evidence.window or found.policy.layers.reads_rows
    voting = found.policy.rows(TOKENS)

    def spoilt(window: Window) -> Window:
        queries, outputs, lse = (part.clone() for part in (window.queries, window.outputs, window.lse))
        for part in (queries, outputs, lse):
            part[:, : TOKENS - voting] = torch.nan
        return Window(queries, outputs, lse, window.scaling)

    layers = [replace(one, windows=tuple(map(spoilt, one.windows)) if asks else ()) for one in cache().layers]
    if found.score.evidence.repeat is None:
        layers = [replace(one, probed={}) for one in layers]
    if found.score.evidence.horizon is None:
        layers = [replace(one, forecasts=()) for one in layers]
    assert torch.equal(kept(found, cache()), kept(found, KVCache(tuple(layers), TOKENS)))


@every
def test_what_comes_later_changes_nothing(policy: str, score: str) -> None:
    """A cut after so many tokens of a longer text is that of the text that ends there."""
    if found := eviction(policy, score):
        generator = torch.Generator().manual_seed(3)
        queries, keys, values = (torch.randn(heads, TOKENS + 30, 10, generator=generator) for heads in (6, 2, 2))
        whole = KVCache((layer_of(queries[:, :TOKENS], keys[:, :TOKENS], values[:, :TOKENS]),), TOKENS)
        first = kept(found, whole)
        for part in (queries, keys, values):
            part[:, TOKENS:] = torch.nan
        again = KVCache((layer_of(queries[:, :TOKENS], keys[:, :TOKENS], values[:, :TOKENS]),), TOKENS)
        assert torch.equal(first, kept(found, again))


@every
def test_one_cache_a_query_head_works_as_well(policy: str, score: str) -> None:
    """As many pairs for each of the six query heads; what is spent is really repeated."""
    if found := eviction(policy, score):
        apart = replace(found.policy, layout="query_heads")
        smaller = Eviction(apart, found.score, found.budget)(cache())
        assert 0 <= BUDGET * 6 * LAYERS - smaller.pairs < left_over(apart)
        assert smaller.bytes_held == smaller.pairs * 2 * 10 * 4


@every
def test_published_variants_stay_near_the_budget(policy: str, score: str) -> None:
    """They may overspend, and never touch the protected tokens."""
    if found := eviction(policy, score):
        official = Eviction(replace(found.policy, variant="official"), found.score, found.budget)
        decision = official.decide(cache())
        mean = float(decision.lengths.float().mean())
        least = found.policy.protected if found.policy.heads.kind == "binary" else BUDGET - 2  # heads that tie all go
        assert least <= mean <= 1.25 * BUDGET
        assert all(mask[:, TOKENS - found.policy.recent :].all() for mask in decision.kept)
