"""Properties of every score on every policy, whoever wrote them: functions that raise AssertionError if it does not.

The suite runs them over all of `conf/`; a package with a score or policy of its own runs the same ones:

    from kvbench.extras.conformance.properties import check
    check(MyScore())                        # on a policy that takes any score
    check(MyScore(), policy=my_policy)

or, from the command line, `kvbench conform --properties score=my_score`. Knows nothing about configuration.
"""

import re

from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.extras.conformance.properties.caches import WINDOWED
from kvbench.extras.conformance.properties.evictions import EDGE_CASES, INCREMENTAL, PROPERTIES, SINGLE, Property
from kvbench.support.errors import UserError

__all__ = ["EDGE_CASES", "INCREMENTAL", "PROPERTIES", "SINGLE", "Property", "check", "failures"]


def check(score: Score, policy: Policy = WINDOWED) -> None:
    """Raise AssertionError, with the name of the property and what happened, for the first that does not hold.

    Raises ValueError if the policy cannot host the score.
    """
    for holds in PROPERTIES:
        try:
            holds(policy, score)
        except AssertionError as error:
            raise AssertionError(f"{holds.__name__}: {error}") from error


def failures(policy: Policy, score: Score) -> list[str]:
    """Return the properties that do not hold and what happened, whatever exception the score raises. What several
    of them say, but for numbers, is told once.
    """
    alike: dict[str, list[str]] = {}
    for holds in PROPERTIES:
        try:
            holds(policy, score)
        except Exception as error:  # a plugin's score may raise anything
            kind = "" if isinstance(error, AssertionError | UserError) else f"{type(error).__name__}: "
            told = [text for text in alike if _without_numbers(text) in _without_numbers(str(error))]
            alike.setdefault(told[0] if told else f"{kind}{error}", []).append(holds.__name__)
    return [
        f"{names[0] if len(names) == 1 else f'{len(names)} of {len(PROPERTIES)} properties'}: {text}"
        for text, names in alike.items()
    ]


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "", text)
