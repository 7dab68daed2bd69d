"""What a row of InfiniteBench fills a template with: src/eval_utils.py of OpenBMB/InfiniteBench, `create_prompt`.

Rows published today have one schema for all tasks, from which the fields of a template are read:
context                    context
input, question            input
OPTION_A ... OPTION_D      options
prefix                     math_find: "What is the largest number in the following list?", from its input
                           "... The largest number of the list is: "
func, func_call            code_run: "func_6351", "func_6351(2)", from its input "... value of func_6351(2). ..."
"""

import re
from collections.abc import Mapping
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.infinitebench.labels import CHOICES
from kvbench.tasks.jsonl import field, text
from kvbench.tasks.metrics.infinitebench import LETTERS


def fields(member: str, row: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a row of a task.

    Raises ValueError for a row that lacks a field, whose field has another type, or whose context is empty.
    """
    question = text(row, "input")
    found = {"context": text(row, "context"), "input": question, "question": question}
    if not found["context"].strip():
        raise UserError("its context is empty")
    if member in CHOICES:
        found |= {f"OPTION_{letter}": option for letter, option in zip(LETTERS, options(row), strict=True)}
    elif member == "math_find":
        asked = re.search(r"The .+ of", question)
        if asked is None:
            raise UserError(f"its input {question!r} names no number as 'The ... of' does")
        found["prefix"] = f"What is {asked[0].lower().removesuffix(' of')} in the following list?"
    elif member == "code_run":
        call = re.search(r"func_[0-9]+\(-?[0-9]+\)", question)
        if call is None:
            raise UserError(f"its input {question!r} calls no function as func_1(2) does")
        found |= {"func": call[0].partition("(")[0], "func_call": call[0]}
    return found


def options(row: Mapping[str, Any]) -> list[str]:
    """The four options of a multiple choice. Raises ValueError for others."""
    given = field(row, "options")
    if not isinstance(given, list) or len(given) != len(LETTERS) or not all(isinstance(one, str) for one in given):
        raise UserError(f"its options are {str(given)[:80]}: a list of four texts")
    return given
