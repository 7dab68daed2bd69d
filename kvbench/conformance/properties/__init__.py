"""What every score on every policy must do, whoever wrote them: functions that raise AssertionError where it does not.

The suite runs them over all of `conf/`; a package with a score or policy of its own runs the same ones:

    from kvbench.conformance.properties import check
    check(MyScore())                        # on a policy that takes any score
    check(MyScore(), policy=my_policy)

or, from the command line, `kvbench conform --properties score=my_score`. Knows nothing about configuration.
"""

from collections.abc import Callable

from kvbench.conformance.properties import cuts, odd, steps
from kvbench.conformance.properties.inputs import WINDOWED
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score

Property = Callable[[Policy, Score], None]
CUTS: tuple[Property, ...] = (
    cuts.budget_is_spent_and_protected_tokens_stay,
    cuts.budget_for_everything_keeps_the_dense_cache,
    cuts.samples_do_not_see_each_other,
    cuts.only_declared_evidence_is_read,
    cuts.later_tokens_change_nothing,
    cuts.query_heads_can_be_stored_apart,
    cuts.official_variant_stays_near_the_budget,
)
"""Of one cut."""
ODD: tuple[Property, ...] = (
    odd.short_prompts_stay_whole,
    odd.window_may_be_longer_than_the_prompt,
    odd.one_candidate_may_be_left_out,
    odd.no_candidate_may_stay,
    odd.equal_pairs_are_chosen_the_same_way,
    odd.saturated_attention_is_ranked,
    odd.numbers_that_are_none_are_refused,
)
"""Of input at the edge."""
STEPS: tuple[Property, ...] = (
    steps.decoding_holds_the_capacity,
    steps.blocks_hold_the_budget_and_do_not_look_ahead,
)
"""Of cuts that follow each other; where the schedule is refused with a reason there is nothing to hold."""
PROPERTIES: tuple[Property, ...] = (*CUTS, *ODD, *STEPS)


def check(score: Score, policy: Policy = WINDOWED) -> None:
    """Raise AssertionError, with the name of the property and what happened, for the first that does not hold.

    Raises ValueError where the policy cannot host the score.
    """
    for one in PROPERTIES:
        try:
            one(policy, score)
        except AssertionError as error:
            raise AssertionError(f"{one.__name__}: {error}") from error
