"""What settings take for granted of each other: a cell is refused if and only if a fact that it needs is broken."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.support.errors import UserError
from kvbench.support.facts import Claim, check

FACTS = st.sets(st.sampled_from("abcd"))
CLAIMS = st.builds(
    lambda number, needs, breaks, grants: Claim(
        f"s{number}", f"t{number}", {fact: f"needs {fact}" for fact in needs},
        {fact: f"ends {fact}" for fact in breaks}, frozenset(grants),
    ),
    st.integers(0, 99), FACTS, FACTS, FACTS,
)  # fmt: skip


def broken(claims: Sequence[Claim]) -> set[str]:
    """Facts that are needed, broken and not granted."""

    def named(sides: Iterable[Iterable[str]]) -> set[str]:
        return {fact for side in sides for fact in side}

    needed, ended = named(claim.needs for claim in claims), named(claim.breaks for claim in claims)
    return (needed & ended) - named(claim.grants for claim in claims)


@given(st.lists(CLAIMS, max_size=6))
def test_claims_are_refused_if_a_needed_fact_is_broken_and_not_else(claims: list[Claim]) -> None:
    facts = broken(claims)
    if not facts:
        check(claims)
        return
    with pytest.raises(UserError) as refused:
        check(claims)
    (fact,) = {fact for fact in facts if f"needs {fact}" in str(refused.value)}
    one = next(
        claim for claim in claims if fact in claim.needs and f"{claim.setting} needs {fact}" in str(refused.value)
    )
    assert f"ends {fact}: use t" in str(refused.value) and one.instead in str(refused.value)


WORDS = (
    "policy.page=16", "policy.share=model", "policy.apply=d2o", "policy.apply=think", "policy.positions=cache",
    "policy.heads=flat", "policy.layers=global", "policy.window=question", "policy.window_skips=2", "store=int4",
    "reader=quest", "schedule.evict_after=context", "schedule.prefill_block=64", "schedule.decode_every=4",
    "task=efficiency", "score=kvzip_logit",
)  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
def test_a_pair_of_settings_is_refused_for_a_fact_and_for_nothing_else(word: str) -> None:
    """Of settings that are allowed alone, each pair."""
    for other in WORDS:
        if word >= other or word.partition("=")[0] == other.partition("=")[0]:
            continue
        try:
            (tree,) = combinations(parse(["policy=snapkv", word, other]))
            cell = CellBuilder().cell(tree)
        except UserError as error:  # one part refuses what contradicts itself when it is made: a policy, a holder
            is_of_one_part = {word, other} == {"reader=quest", "store=int4"} or (
                "policy." in word and "policy." in other
            )
            assert is_of_one_part and ", but " in str(error)
            continue
        if broken(tuple(cell.eviction.claims(cell.task, cell.schedule))):
            with pytest.raises(UserError, match=r".+, but .+: use .+"):
                cell.check()
        else:
            cell.check()
