"""KVzip's scores of short answers to SCBench, SQuAD and GSM8K: results/metric.py of https://github.com/snu-mllab/KVzip.

Each function scores one answer against one reference in 0..1. An answer of white space scores 0. Official aggregation:
the mean over the questions of a context, then over contexts, x 100.

Namesakes that differ: SCBench's own scorer takes a choice by its letter, a number by the first one in the answer, and
F1 alone for questions about books.
"""

import re
from collections import Counter

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.longbench import rouge
from kvbench.tasks.metrics.words import english

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = {word: str(digit) for digit, word in enumerate(WORDS)}
NUMBER_WORDS = re.compile(rf"\b({'|'.join(DIGITS)})\b")


def normalized(text: str) -> str:
    """Lower case, no ASCII punctuation, none of the words a, an, the, single blanks, and "zero" to "nine" as digits."""
    return NUMBER_WORDS.sub(lambda word: DIGITS[word[0]], " ".join(english(text)))


def inclusion(prediction: str, reference: str) -> float:
    """1 if the normalised answer contains the normalised reference, which may be empty."""
    return float(_has_text(prediction) and normalized(reference) in normalized(prediction))


def first_line(prediction: str, reference: str) -> float:
    """`inclusion` in the first line of the answer, blank or not."""
    if not _has_text(prediction):
        return 0.0
    return float(normalized(reference) in normalized(prediction.split("\n")[0]))


def share(prediction: str, reference: str) -> float:
    """Share of the items of the reference, separated by ", ", that the answer contains verbatim."""
    items = reference.split(", ")
    return sum(item in prediction for item in items) / len(items) if _has_text(prediction) else 0.0


def exact(prediction: str, reference: str) -> float:
    """1 if the answer equals the reference, character by character."""
    return float(_has_text(prediction) and prediction == reference)


def option(prediction: str, reference: str) -> float:
    """1 for the right option; the reference is "(A) text".

    If the answer begins with a bracket too, the contents of the brackets must be equal. Otherwise the answer must
    include the text after the first bracket of the reference, up to the next closing one, as in `inclusion`.

    Raises UserError for a reference that begins with a bracket which does not close.
    """
    if not _has_text(prediction):
        return 0.0
    if reference.startswith("("):
        if ")" not in reference:
            raise UserError(f"the reference {reference[:80]!r} is not an option: its closing bracket is missing")
        if prediction.startswith("("):
            bracketed, expected = (text.split("(")[1].split(")")[0] for text in (prediction, reference))
            return float(bracketed == expected)
        reference = reference.split(")")[1].strip()
    return float(normalized(reference) in normalized(prediction))


def f1_or_inclusion(prediction: str, reference: str) -> float:
    """The larger of `inclusion` and the F1 `2 P R / (P + R)` of the multisets of normalised words."""
    words, expected = normalized(prediction).split(), normalized(reference).split()
    shared = sum((Counter(words) & Counter(expected)).values())
    f1 = 2 * shared / (len(words) + len(expected)) if shared else 0.0
    return max(f1, inclusion(prediction, reference))


def solution(prediction: str, reference: str) -> float:
    """1 if the answer contains the result of the solution, else 0.

    The answer is in lower case and begins after its last "the answer is ", if any. The result follows the last
    "#### " of the reference. Nothing else is normalised: 1,000 is not 1000, and 180 contains 18.
    """
    answer = prediction.strip().lower().split("the answer is ")[-1]
    return float(_has_text(prediction) and reference.strip().split("#### ")[-1] in answer)


def summary(prediction: str, reference: str) -> float:
    """F of ROUGE-L by rouge 1.0.1, as in LongBench. Raises UserError if it is not installed."""
    return rouge(prediction, reference) if _has_text(prediction) else 0.0


def _has_text(prediction: str) -> bool:
    return bool(prediction.strip())
