"""A row's `answer` as references: it comes as a text, a number, a list of one, or a list of several, by task and year.

Rows published today:                            older files and copies, read alike:
passkey, number_string  ["71432"]                "71432"
kv_retrieval            ["5e6b7b90-..."]         "5e6b7b90-..."
code_run, math_find     [4], [88.5]              4, "4", ["4"]
math_calc               "[79, 59, 73]"           [79, 59, 73], [[79, 59, 73]]
longbook_choice_eng,    ["Snowfield"]            "Snowfield", ["Snowfield", "C"]
code_debug                                       (the letter is that of the row's options)
all others              ["ACE", "ACE ROTHSTEIN"] "ACE"

The official file of scores fails on some of the older ones or scores them 0, see `metrics.infinitebench`.
"""

import json
from collections.abc import Sequence
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.infinitebench import LETTERS, number

SINGLE = ("passkey", "number_string", "kv_retrieval")
NUMBERS = ("code_run", "math_find")
CHOICES = ("longbook_choice_eng", "code_debug")


def references(member: str, answer: Any, options: Sequence[str]) -> tuple[str, ...]:
    """The references of a row of a task.

    A multiple choice has the option's text and its letter.

    Raises:
        ValueError: the answer is empty or of another type, or is none of the options.
    """
    if member == "math_calc":
        return _sequence(answer)
    values = answer if isinstance(answer, list) else [answer]
    if not values or any(isinstance(value, bool) or not isinstance(value, (str, int, float)) for value in values):
        raise UserError(f"its answer is {_shown(answer)}: a text, a number or a list of these")
    texts = tuple(str(value) for value in values)
    if not all(texts):
        raise UserError(f"its answer {_shown(answer)} holds an empty text")
    if member in CHOICES:
        return _chosen(texts, options)
    if member in (*SINGLE, *NUMBERS) and len(texts) > 1:
        raise UserError(f"its answer {_shown(answer)} has {len(texts)} labels, {member} has one")
    if member in NUMBERS:
        number(str(values[0]))
    return texts


def _sequence(answer: Any) -> tuple[str, ...]:
    try:
        values = json.loads(answer) if isinstance(answer, str) else answer
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not isinstance(values, list) or not values or any(type(value) is not int for value in values):
        raise UserError(f"its answer is {_shown(answer)}: a list of whole numbers, or such a list as a text")
    return tuple(map(str, values))


def _chosen(texts: tuple[str, ...], options: Sequence[str]) -> tuple[str, ...]:
    if len(texts) == 2 and texts[1] in tuple(LETTERS):
        return texts
    if len(texts) != 1:
        raise UserError(f"its answer {_shown(list(texts))} has {len(texts)} labels: the option, or option and letter")
    if texts[0] not in options:
        raise UserError(f"its answer {texts[0]!r} is none of its options {_shown(list(options))}")
    return texts[0], LETTERS[list(options).index(texts[0])]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
