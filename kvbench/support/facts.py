"""What the settings of a cell take for granted of each other, and the one check of it.

Each part of a cell says which facts it needs and which it makes untrue; no part names another one. A fact is a text, so
that code of others can add its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvbench.support.errors import UserError

# how a budget is divided
EVEN_BUDGET: str = "a budget that is divided evenly over the heads of a layer"
EVEN_LAYERS: str = "a budget that is divided evenly over the layers"
EVEN_IN_LAYER: str = "the same number of KV pairs in all heads of a layer"
EVEN_HEADS: str = "the same number of KV pairs in every head"
COUNTED_BUDGET: str = "a budget that is a number of KV pairs"
COMPARABLE: str = "scores of different heads that can be compared"
EVICTS: str = "pairs that are evicted"
# what kept pairs are
READ_ORDER: str = "KV pairs in the order in which they were read"
MODEL_KEYS: str = "keys as the model made them"
OWN_ROTATION: str = "keys that stay as they were rotated"
PLAIN_COPY: str = "kept pairs as the model stores them"
# when pairs are evicted
FULL_CACHE: str = "the full cache of the prompt"
NO_BLOCKS: str = "no eviction while a prompt is read"
ONE_EVICTION: str = "one eviction, after the prompt"
SCORED_ONCE: str = "scores that are computed once"
SCORED_BEFORE_ANSWER: str = "scores that are computed before the answer"
NO_LATER_EVICTION: str = "no eviction from the answer"
LATER_EVICTION: str = "an eviction after the prompt"
QUESTION_READ: str = "a question that is read before the eviction"
WHOLE_PROMPT: str = "a prompt that is read as a whole before the eviction"
# what is read and answered
PROMPT_END: str = "the newest tokens of a prompt"
PROMPT: str = "a prompt that is evicted from once it is read"
QUESTION: str = "a question"
TURNS: str = "turns of a run"
TEXT_IN_BLOCKS: str = "a text that may be read in blocks"
ANSWER: str = "an answer that is generated"
UNTIMED: str = "an answer whose seconds do not count"
ALL_READ: str = "kept pairs that are all read"
UNCHANGED: str = "kept pairs as they were selected"


@dataclass(frozen=True)
class Claim:
    """What one setting takes for granted and what it makes untrue.

    setting: as a message names it. instead: settings without this claim. needs: why, by fact. breaks: how, by fact.
    grants: facts that hold whatever breaks them.
    """

    setting: str
    instead: str
    needs: Mapping[str, str] = field(default_factory=dict)
    breaks: Mapping[str, str] = field(default_factory=dict)
    grants: frozenset[str] = frozenset()


def check(claims: Iterable[Claim]) -> None:
    """Raise UserError for the first setting that needs a fact which another one breaks and none grants.

    The message: `A needs this, but B breaks it: use the settings without B, or those without A`.
    """
    claims = tuple(claims)
    granted = frozenset[str]().union(*(claim.grants for claim in claims))
    for claim in claims:
        for fact, why in claim.needs.items():
            other = next((other for other in claims if fact in other.breaks and fact not in granted), None)
            if other is not None:
                fixes = ", or ".join(dict.fromkeys(fix for fix in (other.instead, claim.instead) if fix))
                raise UserError(f"{claim.setting} {why}, but {other.setting} {other.breaks[fact]}: use {fixes}")
