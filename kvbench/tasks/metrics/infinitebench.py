"""InfiniteBench's scorer, one function a task: src/compute_scores.py of OpenBMB/InfiniteBench at 88b3daa.

Each gives one answer's worth in 0..1; the benchmark's number is the mean over rows, which papers show x 100. References
are texts; the first counts where one is expected, and a multiple choice has two: the option's text and its letter.
`infinitebench_loose` holds what LAVa and kvpress score otherwise, `infinitebench_text` the tasks with free answers.

Difference from the official file: it takes a label as the row holds it, and a list is then never found among the words
of an answer to kv_retrieval, so that it scores 0 on the rows as published today. Here references are unwrapped before.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from kvbench.support.errors import UserError

RETRIEVAL = "\n:\"'.,?!{}"
CHOICE = "\n\"'.,?!{}"
LETTERS = "ABCD"
CHOICE_PREFIXES = ("answer is:", "answer:", "answer is", "option is")
DEBUG_PREFIXES = ("answer is:", "is:", "answer:", "correct option is:")


class Metric(Protocol):
    """An answer and its references to its worth."""

    def __call__(self, prediction: str, references: Sequence[str], /) -> float: ...


def passkey(prediction: str, references: Sequence[str]) -> float:
    """1 if the first run of the digits 0-9 equals the label, else 0. Also the metric of number_string."""
    found = re.search(r"[0-9]+", prediction)
    return float(found is not None and found[0] == first(references))


def kv_retrieval(prediction: str, references: Sequence[str]) -> float:
    """1 if the label is one of the words once line breaks and ``: " ' . , ? ! { }`` are blanked, else 0."""
    return float(first(references) in blanked(prediction, RETRIEVAL).split())


def longdialogue(prediction: str, references: Sequence[str]) -> float:
    """1 if the first label is one of the upper-cased words, else 0; so no label with a blank or small letter matches.

    Punctuation is blanked as in kv_retrieval; the labels after the first are ignored.
    """
    return float(first(references) in [word.upper() for word in blanked(prediction, RETRIEVAL).split()])


def choice(prediction: str, references: Sequence[str]) -> float:
    """1 if the option that the answer names is the right one, else 0.

    The first rule that applies decides: a first character of A to D; the answer is a label as a whole; what follows
    "answer is:", "answer:", "answer is" or "option is" (the first of these that is there) and one more character begins
    with a label; the first word that is a part of the text "ABCD" is a label ("AB" is a part, and no label).
    """
    answer = prediction.strip()
    first(references)
    if answer[:1] and answer[0] in LETTERS:
        return float(answer[0] in references)
    if answer in references:
        return 1.0
    answer = squeezed(blanked(answer, CHOICE))
    rest = after(answer, CHOICE_PREFIXES)
    if rest is not None:
        return float(rest.startswith(tuple(references)))
    return float(next((word in references for word in answer.split() if word in LETTERS), False))


def code_debug(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer begins with the right letter and ``.`` or ``:``, or has letter or name after a phrase, else 0.

    The phrases are "answer is:", "is:", "answer:" and "correct option is:"; the first of these that is there decides.
    A bare letter scores 0.
    """
    name, letter = pair(references)
    answer = prediction.strip()
    if answer[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    rest = after(without_marks(answer), DEBUG_PREFIXES)
    return float(rest is not None and rest.startswith((letter, name)))


def code_run(prediction: str, references: Sequence[str]) -> float:
    """1 if the last word is the label as a whole number, else 0; line breaks and ``. ` ' " :`` are blanked."""
    words = blanked(prediction, "\n.`'\":").split()
    try:
        return float(int(words[-1]) == number(first(references))) if words else 0.0
    except ValueError:
        return 0.0


def math_find(prediction: str, references: Sequence[str]) -> float:
    """1 if the first number of the answer, its sign ignored, equals the label, else 0.

    Raises:
        ValueError: the label is a whole number and the first number of the answer has a fraction; the official scorer
            ends with an error there.
    """
    label, found = number(first(references)), re.search(r"\d+\.\d+|\d+", prediction)
    if found is None:
        return 0.0
    if isinstance(label, int) and "." in found[0]:
        raise UserError(
            f"math_find: the answer's first number {found[0]} has a fraction and the label {label} has none; "
            "the official scorer has no value for it"
        )
    try:
        return float(type(label)(found[0]) == label)
    except ValueError:  # more digits than Python converts: no label has as many
        return 0.0


def math_calc(prediction: str, references: Sequence[str], *, skip_first: bool = False) -> float:
    """Share of the labels that the answer's numbers equal before the first that differs: `leading equal / labels`.

    Numbers are runs of the digits 0-9, so that signs are dropped and a negative label is never met. `skip_first` leaves
    out the answer's first number, as officially for GPT-4, which is asked with a bare expression.
    """
    first(references)
    numbers = re.findall(r"[0-9]+", prediction)[1 if skip_first else 0 :]
    equal = 0
    for label, found in zip(references, numbers, strict=False):
        if str(number(label)) != (found.lstrip("0") or "0"):
            break
        equal += 1
    return equal / len(references)


def first(references: Sequence[str]) -> str:
    """The reference that counts. Raises ValueError without any."""
    if not references:
        raise UserError("a prediction is scored against at least one reference, got none")
    return references[0]


def pair(references: Sequence[str]) -> tuple[str, str]:
    """Text and letter of the right option. Raises ValueError for other references."""
    if len(references) != 2:
        raise UserError(f"a multiple choice has two references, text and letter, got {len(references)}")
    return references[0], references[1]


def number(text: str) -> int | float:
    """A label that is a number. Raises ValueError for others."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise UserError(f"the label {text!r} is no number") from None


def blanked(text: str, characters: str) -> str:
    """A text with a blank for each of these characters."""
    return text.translate(dict.fromkeys(map(ord, characters), " "))


def squeezed(text: str) -> str:
    """A text with one blank for several."""
    return re.sub(" {2,}", " ", text)


def without_marks(text: str) -> str:
    """An answer to code_debug without quotes, dashes, asterisks, line breaks and the word option."""
    return squeezed(blanked(text, "\n`'\"-*").replace("Option", " ").replace("option", " "))


def after(text: str, phrases: Sequence[str]) -> str | None:
    """What comes one character after the first of the phrases, in their order, that is there; None without any."""
    for phrase in phrases:
        place = text.find(phrase)
        if place >= 0:
            return text[place + len(phrase) + 1 :]
    return None
