"""CAKE decodes by a rule of its own: the newest row alone, whatever the prompt was cut by."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.config.settings import build
from kvbench.eviction.allocation.layers import PreferenceLayers
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Phase, Phases, Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention, Cake
from kvbench.extras.conformance.golden import load
from kvbench.extras.conformance.golden.case import cache_of, eviction_of
from kvbench.extras.conformance.golden.compare import compare_steps, steps_after_prompt
from tests.arrays import random_cache
from tests.composed import composed

GOLDEN = Path(__file__).parents[1] / "golden" / "eviction"
PROMPT = Policy("cake", window=9, recent=3, reduce="mean", pool=Pool("avg", 5), order=("pool", "group"))
CAKE = replace(PROMPT, phases=Phases(decode=Phase(window=1)))


@pytest.mark.parametrize("name", ["cake_decode_position_order", "cake_decode_published"])
def test_the_phase_of_the_policy_is_that_of_the_golden_cases(name: str) -> None:
    case = load(GOLDEN / f"{name}.npz")
    spoken = eviction_of(case)
    phases = build("policy", composed("policy=cake")["policy"]).phases
    assert phases == Phases(decode=Phase(window=1, reduce="mean"))  # the group is that of the score: mean
    eviction = replace(spoken, policy=replace(spoken.policy, phases=phases))
    cache = cache_of(case, eviction)
    decision = eviction.decide(cache)
    cuts = steps_after_prompt(case, eviction, cache, decision, eviction.evict(cache, decision))
    assert compare_steps(case, cuts)[1] is None


def test_only_cuts_while_decoding_follow_their_phase() -> None:
    """Of nine rows the newest votes alone, in a step of decoding and nowhere else."""
    (layer,) = random_cache(50, layers=1).layers
    rows = attend_layer(torch.randn(6, 9, 10), layer, AttentionParams(0.3))

    def kept(policy: Policy, decoding: bool) -> list[int]:
        evictor = IncrementalEviction(Eviction(policy, Attention(), TokenBudget(20)), 20, decoding)
        return evictor.step(layer, rows).layer.positions.tolist()

    newest = replace(PROMPT, window=1)
    assert kept(CAKE, True) == kept(newest, True) == kept(newest, False)
    assert kept(CAKE, False) == kept(PROMPT, True) != kept(CAKE, True)


@pytest.mark.parametrize("slot_order", ["position", "score"])
def test_a_prompt_that_the_official_allocation_spares_is_cut_to_the_budget_by_the_first_token(slot_order: str) -> None:
    """CAKE's code cuts no prompt of up to budget + recent tokens; what it decodes with is the budget all the same."""
    policy = replace(CAKE, layers=PreferenceLayers(), variant="official", slot_order=slot_order)
    eviction, cache = Eviction(policy, Cake(), TokenBudget(20)), random_cache(22, layers=2, window=9)
    decision = eviction.decide(cache)
    assert decision.keeps_all(22)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, cache, decision), decoding=True)
    for layer in evictor.remember(cache, decision, eviction.evict(cache, decision)).layers:
        assert layer.positions.tolist() == [*range(22)] * 2  # no ranking was used, so none orders the slots
        new = layer.append(torch.randn(2, 1, 10), torch.randn(2, 1, 10), 22)
        assert evictor.step(new, attend_layer(torch.randn(6, 1, 10), new, AttentionParams(0.3))).layer.lengths == (
            20,
            20,
        )


def test_a_phase_holds_what_a_policy_may_say() -> None:
    assert CAKE.decoding == replace(PROMPT, window=1)
    assert PROMPT.decoding is PROMPT
    with pytest.raises(
        ValueError, match=r"policy\.phases\.decode: policy\.window=0: allowed: 1 or more observed queries"
    ):
        Policy("p", phases=Phases(decode=Phase(window=0)))
    with pytest.raises(ValueError, match=r"policy\.phases\.decode: policy\.reduce=avg is not allowed"):
        Policy("p", phases=Phases(decode=Phase(reduce="avg")))  # type: ignore[arg-type]


def test_the_command_line_overrides_the_schedule_and_the_phase_of_the_policy() -> None:
    assert composed("policy=cake")["schedule"]["decode_every"] == 1
    assert composed("policy=cake", "schedule.decode_every=null")["schedule"]["decode_every"] is None
    four = composed("policy=cake", "policy.phases.decode.window=4")["policy"]
    assert build("policy", four).decoding.window == 4
    with pytest.raises(ValueError, match=r"unknown setting policy\.phases\.decode\.widow"):
        build("policy", four | {"phases": {"decode": {"widow": 4}}})
