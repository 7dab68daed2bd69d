"""Scores of RULER v2: `eval_ruler2` and `eval_mcq` of nemo_skills/evaluation/evaluator/{ruler,mcq}.py at 991a743."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

Match = Literal["all", "2steps", "part", "multichoice"]
COPIED = re.compile(r"Document \d+:(?:.*\n)+?\n")
"""A document that an answer copies, up to the empty line after it."""
LETTER = re.compile(r"\b[A-J]\b")
STATED = re.compile(r"(?i)answer[*_]{0,2}\s*:[\s*_]{0,2}\s*([A-Z])(?![A-Z0-9])")


def match_all(answer: str, references: Sequence[str]) -> float:
    """Return the mean of `likeness` over the references, 0..1."""
    return _mean(_stated(answer), references)


def match_2steps(answer: str, references: Sequence[str]) -> float:
    """Return `match_all` of what follows the last empty line of an answer, 0..1."""
    return _mean(_stated(answer).rpartition("\n\n")[2], references)


def match_part(answer: str, references: Sequence[str]) -> float:
    """Return the largest `likeness` of an answer without the documents that it copies, 0..1."""
    stated = COPIED.sub("", _stated(answer))
    return max(likeness(stated, reference) for reference in references)


def multichoice(answer: str, references: Sequence[str]) -> float:
    """Return whether an answer chooses the letter that is the only reference, 0 or 1."""
    (right,) = references
    return float(chosen(answer) == right)


MATCHES: Mapping[Match, Callable[[str, Sequence[str]], float]] = {
    "all": match_all,
    "2steps": match_2steps,
    "part": match_part,
    "multichoice": multichoice,
}


def likeness(answer: str, reference: str) -> float:
    """Return 1 if the answer contains the reference, else 1 less its word error rate, at least 0; case is ignored."""
    answer, reference = answer.lower(), reference.lower()
    if reference in answer:
        return 1.0
    words = reference.split()
    return max(0.0, 1 - edits(answer.split(), words) / len(words)) if words else 0.0


def edits(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the fewest words that are inserted, left out or replaced to make `right` of `left`."""
    row = [*range(len(right) + 1)]
    for number, word in enumerate(left, start=1):
        before, row[0] = row[0], number
        for place, other in enumerate(right, start=1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def chosen(answer: str) -> str | None:
    """Return the letter in the last box of an answer, else the one after its last "Answer:"; None without either.

    A box without a letter of its own is returned as it is.
    """
    box = _boxed(answer)
    if box is None:
        return (STATED.findall(answer) or [None])[-1]
    return box if len(box) == 1 else (LETTER.findall(box) or [box])[-1]


def _mean(stated: str, references: Sequence[str]) -> float:
    return sum(likeness(stated, reference) for reference in references) / len(references)


def _boxed(answer: str) -> str | None:
    r"""Return the content of the last \boxed, with whole pairs of braces; None if it is not closed."""
    _, found, rest = answer.rpartition("\\boxed")
    depth = 0
    for place, character in enumerate(rest if found and rest.startswith("{") else ""):
        depth += (character == "{") - (character == "}")
        if not depth:
            return rest[1:place]
    return None


def _stated(answer: str) -> str:
    """Return what follows the reasoning and the last "Answer:"."""
    return answer.rpartition("</think>")[2].rpartition("Answer:")[2]
