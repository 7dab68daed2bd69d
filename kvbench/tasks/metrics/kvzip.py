"""KVzip's scores of short answers to SCBench, SQuAD and GSM8K: results/metric.py of https://github.com/snu-mllab/KVzip.

Each is one answer's worth against one reference in 0..1. An answer of white space alone is worth 0. Aggregation there:
the mean over the questions of a context, then over contexts, x 100.

Namesakes that differ: SCBench's own scorer takes a choice by its letter, a number by the first one in the answer, and
F1 alone for questions about books.
"""

import re
from collections import Counter

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.longbench_rouge import rouge
from kvbench.tasks.metrics.words import english

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = {word: str(digit) for digit, word in enumerate(WORDS)}
NUMBER_WORDS = re.compile(rf"\b({'|'.join(DIGITS)})\b")
SAID = "the answer is "
"""Before the answer of a chain of reasoning; looked for in lower case."""
SOLUTION = "#### "
"""Before the answer of a solution in GSM8K."""


def normalized(text: str) -> str:
    """Lower case, no ASCII punctuation, none of the words a, an, the, single blanks, and "zero" to "nine" as digits."""
    return NUMBER_WORDS.sub(lambda word: DIGITS[word[0]], " ".join(english(text)))


def inclusion(prediction: str, reference: str) -> float:
    """1 if the normalised reference is a part of the normalised answer; so is one of which nothing is left."""
    return float(_says(prediction) and normalized(reference) in normalized(prediction))


def first_line(prediction: str, reference: str) -> float:
    """`inclusion` in the first line of the answer, white space before it included; 0 where that line says nothing."""
    if not _says(prediction):
        return 0.0
    return float(normalized(reference) in normalized(prediction.split("\n")[0]))


def share(prediction: str, reference: str) -> float:
    """Share of the reference's items, with ", " between them, that are parts of the answer as they are."""
    items = reference.split(", ")
    return sum(item in prediction for item in items) / len(items) if _says(prediction) else 0.0


def exact(prediction: str, reference: str) -> float:
    """1 if the answer is the reference, character by character."""
    return float(_says(prediction) and prediction == reference)


def option(prediction: str, reference: str) -> float:
    """1 for the right option, of a reference "(A) text".

    Where the answer begins with a bracket too, what stands in the two must be equal. Else the text behind the first
    bracket of the reference, up to the next closing one, must be included as in `inclusion`.

    Raises ValueError for a reference that begins with a bracket which does not close.
    """
    if not _says(prediction):
        return 0.0
    if reference.startswith("("):
        if ")" not in reference:
            raise UserError(f"the reference {reference[:80]!r} is no option: it has no closing bracket")
        if prediction.startswith("("):
            return float(_bracketed(prediction) == _bracketed(reference))
        reference = reference.split(")")[1].strip()
    return float(normalized(reference) in normalized(prediction))


def f1_or_inclusion(prediction: str, reference: str) -> float:
    """The larger of `inclusion` and the F1 `2 P R / (P + R)` of the multisets of normalised words."""
    found, wanted = normalized(prediction).split(), normalized(reference).split()
    shared = sum((Counter(found) & Counter(wanted)).values())
    f1 = 2 * shared / (len(found) + len(wanted)) if shared else 0.0
    return max(f1, inclusion(prediction, reference))


def solution(prediction: str, reference: str) -> float:
    """1 if what stands behind the last "#### " of the reference is a part of what the answer says is the answer.

    That is what stands, in lower case, behind its last "the answer is ", or all of it where it does not say so. Nothing
    is normalised: 1,000 is not 1000, and 18 is a part of 180.
    """
    said = prediction.strip().lower().split(SAID)[-1]
    return float(_says(prediction) and reference.strip().split(SOLUTION)[-1] in said)


def summary(prediction: str, reference: str) -> float:
    """F of ROUGE-L by rouge 1.0.1, as in LongBench. Raises ValueError where it is not installed."""
    return rouge(prediction, reference) if _says(prediction) else 0.0


def _says(prediction: str) -> bool:
    return bool(prediction.strip())


def _bracketed(text: str) -> str:
    return text.split("(")[1].split(")")[0]
