"""The setting: what a cell is named by, and what its label and its claims say."""

from dataclasses import replace
from typing import Any

import pytest

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.allocation.heads import FlatHeads
from kvbench.eviction.allocation.layers import PyramidLayers
from kvbench.eviction.policy import Policy
from kvbench.extras.positions.positions import Positions
from kvbench.run.cell import Cell
from kvbench.support.errors import UserError

RENUMBERED = (Positions("cache"),)


def cell(words: str) -> Cell:
    (tree,) = combinations(parse(words.split()))
    return CellBuilder().cell(tree)


def test_every_cell_is_named_by_the_setting() -> None:
    """Cells without the step have the ids that they had when the setting was a field of each policy."""
    words = "policy=streaming_llm policy.sink=2 policy.budget_span=context budget=64 task=ruler/fwe"
    plain, renumbered = cell(words), cell(f"{words} policy.positions=cache")
    assert plain.policy.steps == () and plain.eviction.policy_label == "streaming_llm sink=2 budget_span=context"
    assert renumbered.eviction.policy_label == "streaming_llm sink=2 positions=cache budget_span=context"
    named = {each: each.description["policy"].pop("positions") for each in (plain, renumbered)}
    assert named == {plain: "original", renumbered: "cache"} and plain.description == renumbered.description


def test_a_step_that_is_idle_is_none() -> None:
    plain = cell("policy=streaming_llm budget=64 task=ruler/fwe").policy
    assert replace(plain, steps=(Positions(),)) == plain and not replace(plain, steps=(Positions(),)).renumbers
    assert replace(plain, steps=(Positions("cache"),)).renumbers


def test_finch_renumbers_and_streaming_llm_does_not() -> None:
    assert cell("policy=finch").policy.renumbers and cell("policy=finch").eviction.policy_label == "finch"
    assert not cell("policy=streaming_llm").policy.renumbers
    assert cell("policy=finch policy.positions=original").eviction.policy_label == "finch positions=original"


def test_a_value_is_original_or_cache() -> None:
    with pytest.raises(UserError, match=r"policy\.positions=other is not allowed; allowed: original, cache"):
        Positions("other")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"heads": FlatHeads()}, r"policy\.positions=cache .*heads=flat .* policy\.positions=original"),
        ({"layers": PyramidLayers()}, r"policy\.layers=pyramid .* policy\.positions=original"),
        ({"slot_order": "score"}, r"use policy\.slot_order=position"),
    ],
)
def test_every_head_holds_as_many_pairs_in_the_order_of_reading(fields: dict[str, Any], says: str) -> None:
    assert Policy("p", steps=RENUMBERED).renumbers and not Policy("p").renumbers
    with pytest.raises(UserError, match=says):
        Policy("p", steps=RENUMBERED, **fields)
