"""Rows of InfiniteBench: the fields of a prompt template and the references of the answer, checked.

Rows published today have one schema for all tasks: context, input, answer, options. Templates are filled as by
`create_prompt` in src/eval_utils.py of OpenBMB/InfiniteBench.

`answer` is a text, a number, a list of one, or a list of several, depending on the task and the year:

Rows published today:                            older files and copies, read alike:
passkey, number_string  ["71432"]                "71432"
kv_retrieval            ["5e6b7b90-..."]         "5e6b7b90-..."
code_run, math_find     [4], [88.5]              4, "4", ["4"]
math_calc               "[79, 59, 73]"           [79, 59, 73], [[79, 59, 73]]
longbook_choice_eng,    ["Snowfield"]            "Snowfield", ["Snowfield", "C"]
code_debug                                       (the letter is that of the row's options)
all others              ["ACE", "ACE ROTHSTEIN"] "ACE"

The official scorer fails on some of the older ones or scores them 0, see `metrics.infinitebench`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.jsonl import field, nonempty_text, text
from kvbench.tasks.metrics.infinitebench import LETTERS, number

SINGLE = ("passkey", "number_string", "kv_retrieval")
NUMBERS = ("code_run", "math_find")
CHOICES = ("longbook_choice_eng", "code_debug")


def fields(member: str, row: Mapping[str, Any]) -> dict[str, str]:
    """The template fields of a row of a task.

    Raises UserError if a field is missing or has another type, or if the context is empty.
    """
    question = text(row, "input")
    filled = {"context": nonempty_text(row, "context"), "input": question, "question": question}
    if member in CHOICES:
        filled |= {f"OPTION_{letter}": option for letter, option in zip(LETTERS, options(row), strict=True)}
    elif member == "math_find":
        match = re.search(r"The .+ of", question)  # "The largest number of the list is: "
        if match is None:
            raise UserError(f"its input {question!r} names no number as 'The ... of' does")
        filled["prefix"] = f"What is {match[0].lower().removesuffix(' of')} in the following list?"
    elif member == "code_run":
        call = re.search(r"func_[0-9]+\(-?[0-9]+\)", question)
        if call is None:
            raise UserError(f"its input {question!r} calls no function as func_1(2) does")
        filled |= {"func": call[0].partition("(")[0], "func_call": call[0]}
    return filled


def options(row: Mapping[str, Any]) -> list[str]:
    """The four options of a multiple choice. Raises UserError for others."""
    values = field(row, "options")
    if not isinstance(values, list) or len(values) != len(LETTERS) or not all(isinstance(v, str) for v in values):
        raise UserError(f"its options are {str(values)[:80]}: a list of four texts")
    return values


def references(member: str, answer: Any, options: Sequence[str]) -> tuple[str, ...]:
    """The references of a row of a task; of a multiple choice the option's text and its letter.

    Raises UserError: the answer is empty, of another type, or not one of the options.
    """
    if member == "math_calc":
        try:
            values = json.loads(answer) if isinstance(answer, str) else answer
        except (ValueError, RecursionError):
            values = None
        if isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        if not isinstance(values, list) or not values or any(type(value) is not int for value in values):
            raise UserError(f"its answer is {_shortened(answer)}: a list of whole numbers, or such a list as a text")
        return tuple(map(str, values))
    values = answer if isinstance(answer, list) else [answer]
    if not values or any(isinstance(value, bool) or not isinstance(value, (str, int, float)) for value in values):
        raise UserError(f"its answer is {_shortened(answer)}: a text, a number or a list of these")
    texts = tuple(str(value) for value in values)
    if not all(texts):
        raise UserError(f"its answer {_shortened(answer)} holds an empty text")
    if member in CHOICES:
        if len(texts) == 2 and texts[1] in tuple(LETTERS):
            return texts
        if len(texts) != 1:
            raise UserError(
                f"its answer {_shortened(answer)} has {len(texts)} labels: the option, or option and letter"
            )
        if texts[0] not in options:
            raise UserError(f"its answer {texts[0]!r} is none of its options {_shortened(list(options))}")
        return texts[0], LETTERS[list(options).index(texts[0])]
    if member in (*SINGLE, *NUMBERS) and len(texts) > 1:
        raise UserError(f"its answer {_shortened(answer)} has {len(texts)} labels, {member} has one")
    if member in NUMBERS:
        number(str(values[0]))
    return texts


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
