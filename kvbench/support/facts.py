"""Assumptions of settings about each other, and the one check of them.

Each part of a cell says which facts it needs and which it makes untrue; no part names another one. A fact is a text, so
that code of others can add its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NewType

from kvbench.support.errors import UserError

Fact = NewType("Fact", str)

# how a budget is divided
EVEN_BUDGET = Fact("a budget that is divided evenly over the heads of a layer")
EVEN_LAYERS = Fact("a budget that is divided evenly over the layers")
EVEN_IN_LAYER = Fact("the same number of KV pairs in all heads of a layer")
EVEN_HEADS = Fact("the same number of KV pairs in every head")
COUNTED_BUDGET = Fact("a budget that is a number of KV pairs")
SIZED_BUDGET = Fact("a budget that says how many KV pairs stay")
COMPARABLE = Fact("scores of different heads that can be compared")
UNSIGNED = Fact("scores that are never negative")
PAIRS_DIFFER = Fact("scores that differ between the pairs of a head")
EQUAL_LENGTHS = Fact("heads that hold equally many pairs before an eviction")
EVICTS = Fact("pairs that are evicted")
# what kept pairs are
READ_ORDER = Fact("KV pairs in the order in which they were read")
MODEL_KEYS = Fact("keys as the model made them")
OWN_ROTATION = Fact("keys that stay as they were rotated")
PLAIN_COPY = Fact("kept pairs as the model stores them")
# when pairs are evicted
FULL_CACHE = Fact("the full cache of the prompt")
NO_BLOCKS = Fact("no eviction while a prompt is read")
ONE_EVICTION = Fact("one eviction, after the prompt")
SCORED_ONCE = Fact("scores that are computed once")
SCORED_BEFORE_ANSWER = Fact("scores that are computed before the answer")
LASTING = Fact("scores that pairs keep")
NO_LATER_EVICTION = Fact("no eviction from the answer")
LATER_EVICTION = Fact("an eviction after the prompt")
QUESTION_READ = Fact("a question that is read before the eviction")
WHOLE_PROMPT = Fact("a prompt that is read as a whole before the eviction")
# what is read and answered
PROMPT_END = Fact("the newest tokens of a prompt")
PROMPT = Fact("a prompt that is evicted from once it is read")
QUESTION = Fact("a question")
TURNS = Fact("turns of a run")
ASKED = Fact("what a server can be asked")
TEXT_IN_BLOCKS = Fact("a text that may be read in blocks")
ANSWER = Fact("an answer that is generated")
UNTIMED = Fact("an answer whose seconds do not count")
ALL_READ = Fact("kept pairs that are all read")
UNCHANGED = Fact("kept pairs as they were selected")


@dataclass(frozen=True)
class Claim:
    """Facts that one setting assumes and facts that it makes untrue.

    setting: as a message names it. instead: settings without this claim. needs: why, by fact. breaks: how, by fact.
    grants: facts that hold whatever breaks them.
    """

    setting: str
    instead: str
    needs: Mapping[Fact, str] = field(default_factory=dict)
    breaks: Mapping[Fact, str] = field(default_factory=dict)
    grants: frozenset[Fact] = frozenset()


def check(claims: Iterable[Claim]) -> None:
    """Raise UserError for the first setting that needs a fact which another one breaks and none grants.

    The message: `A needs this, but B breaks it: use the settings without B, or those without A`.
    """
    claims = tuple(claims)
    granted = frozenset[Fact]().union(*(claim.grants for claim in claims))
    for claim in claims:
        for fact, why in claim.needs.items():
            other = next((other for other in claims if fact in other.breaks and fact not in granted), None)
            if other is not None:
                fixes = ", or ".join(dict.fromkeys(fix for fix in (other.instead, claim.instead) if fix))
                raise UserError(f"{claim.setting} {why}, but {other.setting} {other.breaks[fact]}: use {fixes}")
