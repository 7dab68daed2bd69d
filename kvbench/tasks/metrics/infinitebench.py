"""InfiniteBench's scorers, one function per task: src/compute_scores.py of OpenBMB/InfiniteBench at 88b3daa.

Each function scores one answer in 0..1; the benchmark's number is the mean over rows, which papers show x 100.
References are texts; the first one counts if one is expected, and a multiple choice has two: the option's text and its
letter. All raise UserError without references.

The `loose_` functions are the three tasks that LAVa and kvpress score more generously, from
experiments/InfiniteBench/src/compute_scores.py of MGDDestiny/Lava at 0873e81; kvpress gives the same on the released
answers.

Difference: the official file takes a label of kv_retrieval as the row holds it, today a list, which equals no word, so
that it scores 0. Here references are unwrapped first (`task.label_fix`).
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.packages import rouge_scorer
from kvbench.tasks.metrics.words import ALL, english, f1

RETRIEVAL = "\n:\"'.,?!{}"
CHOICE = "\n\"'.,?!{}"
LETTERS = "ABCD"
CHOICE_PREFIXES = ("answer is:", "answer:", "answer is", "option is")
summary_scorer = partial(rouge_scorer, "longbook_sum_eng", "rougeLsum", use_stemmer=False)
DEBUG_PREFIXES = ("answer is:", "is:", "answer:", "correct option is:")


Metric = Callable[[str, Sequence[str]], float]


def passkey(prediction: str, references: Sequence[str]) -> float:
    """1 if the first run of the digits 0-9 equals the label, else 0. Also the metric of number_string."""
    digits = re.search(r"[0-9]+", prediction)
    return float(digits is not None and digits[0] == first(references))


def kv_retrieval(prediction: str, references: Sequence[str]) -> float:
    """1 if the label is one of the words after replacing line breaks and ``: " ' . , ? ! { }`` by blanks, else 0."""
    return float(first(references) in _blanked(prediction, RETRIEVAL).split())


def longdialogue(prediction: str, references: Sequence[str]) -> float:
    """1 if the first label is one of the words in upper case, else 0; no label with a blank or small letter matches.

    Punctuation becomes blanks as in kv_retrieval; the labels after the first are ignored.
    """
    return float(first(references) in [word.upper() for word in _blanked(prediction, RETRIEVAL).split()])


def choice(prediction: str, references: Sequence[str]) -> float:
    """1 if the option that the answer names is the right one, else 0.

    The first rule that applies decides: the first character is one of A to D; the whole answer is a label; the text
    after "answer is:", "answer:", "answer is" or "option is" (the first of these that occurs) and one more character
    begins with a label; the first word that is a substring of "ABCD" is a label ("AB" is a substring and no label).
    """
    answer = prediction.strip()
    first(references)
    if answer[:1] and answer[0] in LETTERS:
        return float(answer[0] in references)
    if answer in references:
        return 1.0
    answer = re.sub(" {2,}", " ", _blanked(answer, CHOICE))
    rest = _after(answer, CHOICE_PREFIXES)
    if rest is not None:
        return float(rest.startswith(tuple(references)))
    return float(next((word in references for word in answer.split() if word in LETTERS), False))


def code_debug(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer begins with the right letter and ``.`` or ``:``, or has letter or name after a phrase, else 0.

    The phrases are "answer is:", "is:", "answer:" and "correct option is:"; the first of these that occurs decides.
    A bare letter scores 0.
    """
    name, letter = _pair(references)
    answer = prediction.strip()
    if answer[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    rest = _after(_without_marks(answer), DEBUG_PREFIXES)
    return float(rest is not None and rest.startswith((letter, name)))


def code_run(prediction: str, references: Sequence[str]) -> float:
    """1 if the last word is the label as a whole number, else 0; line breaks and ``. ` ' " :`` become blanks."""
    words = _blanked(prediction, "\n.`'\":").split()
    try:
        return float(int(words[-1]) == number(first(references))) if words else 0.0
    except ValueError:
        return 0.0


def math_find(prediction: str, references: Sequence[str]) -> float:
    """1 if the first number of the answer, its sign ignored, equals the label, else 0.

    Raises UserError: the label is a whole number and the first number of the answer has a fraction; the official scorer
    ends with an error there.
    """
    label, match = number(first(references)), re.search(r"\d+\.\d+|\d+", prediction)
    if match is None:
        return 0.0
    if isinstance(label, int) and "." in match[0]:
        raise UserError(
            f"math_find: the answer's first number {match[0]} has a fraction and the label {label} has none; "
            "the official scorer has no value for it"
        )
    try:
        return float(type(label)(match[0]) == label)
    except ValueError:  # more digits than Python converts: no label has as many
        return 0.0


def math_calc(prediction: str, references: Sequence[str], *, skip_first: bool = False) -> float:
    """Share of the labels that equal the answer's numbers before the first difference: `leading equal / labels`.

    Numbers are runs of the digits 0-9, so signs are dropped and a negative label never matches. `skip_first` ignores
    the answer's first number, as officially for GPT-4, whose prompt is the bare expression.
    """
    first(references)
    numbers = re.findall(r"[0-9]+", prediction)[1 if skip_first else 0 :]
    pairs = zip(references, numbers, strict=False)
    equal = (str(number(label)) == (digits.lstrip("0") or "0") for label, digits in pairs)
    return sum(takewhile(bool, equal)) / len(references)


def qa_english(prediction: str, references: Sequence[str]) -> float:
    """The largest F1 of words over the references, as LongBench's `qa_f1`; the benchmark's page calls it ROUGE F1."""
    first(references)
    answer = english(prediction)
    return max(f1(answer, english(reference)) for reference in references)


def qa_chinese(prediction: str, references: Sequence[str]) -> float:
    """F1 of the multisets of characters, lower case, without white space and punctuation of ASCII and Chinese.

    LongBench's namesake counts the words of jieba instead.
    """
    first(references)
    answer, *labels = ("".join(text.lower().translate(ALL).split()) for text in (prediction, *references))
    return max(f1(answer, label) for label in labels)


def summary(prediction: str, references: Sequence[str]) -> float:
    """F of rougeLsum by rouge-score, without stemming: the union of longest common subsequences of all pairs of lines.

    Lines end at line breaks only, as officially in `evaluate.load("rouge")`. LongBench's namesake is the rougeL of the
    package `rouge`, which knows no lines. Raises UserError if rouge-score is not installed.
    """
    first(references)
    return float(summary_scorer().score_multi(list(references), prediction)["rougeLsum"].fmeasure)


def loose_longdialogue(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer contains any label, regardless of case, else 0."""
    first(references)
    answer = prediction.strip().upper()
    return float(any(reference.upper() in answer for reference in references))


def loose_choice(prediction: str, references: Sequence[str]) -> float:
    """1 if the first letter of A to D that stands alone and is the last such one on its line is right, else `choice`.

    So "A or B" counts for B as well as for A.
    """
    first(references)
    alone = _alone(prediction.strip(), "A-D")
    return 1.0 if alone in references else choice(prediction, references)


def loose_code_debug(prediction: str, references: Sequence[str]) -> float:
    """1 if the first letter of A to J that stands alone and is the last such one on its line is right, else whether
    the answer without marks, or the text after a phrase (`DEBUG_PREFIXES`) in it, begins with letter or name."""
    name, letter = _pair(references)
    answer = prediction.strip()
    if _alone(answer, "A-J") == letter:
        return 1.0
    answer = _without_marks(answer)
    if answer.startswith((letter, name)):
        return 1.0
    rest = _after(answer, DEBUG_PREFIXES)
    return float(rest is not None and rest.startswith((letter, name)))


def first(references: Sequence[str]) -> str:
    """The reference that counts. Raises UserError if there is none."""
    if not references:
        raise UserError("a prediction is scored against at least one reference, got none")
    return references[0]


def _pair(references: Sequence[str]) -> tuple[str, str]:
    """Text and letter of the right option. Raises UserError for other references."""
    if len(references) != 2:
        raise UserError(f"a multiple choice has two references, text and letter, got {len(references)}")
    return references[0], references[1]


def number(text: str) -> int | float:
    """A label that is a number. Raises UserError for others."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise UserError(f"the label {text!r} is not a number") from None


def _blanked(text: str, characters: str) -> str:
    """A text with a blank for each of these characters."""
    return text.translate(dict.fromkeys(map(ord, characters), " "))


def _without_marks(text: str) -> str:
    """An answer to code_debug without quotes, dashes, asterisks, line breaks and the word option."""
    return re.sub(" {2,}", " ", re.sub("[Oo]ption", " ", _blanked(text, "\n`'\"-*")))


def _after(text: str, phrases: Sequence[str]) -> str | None:
    """The text one character after the first of the phrases that occurs, in their order; None if none occurs."""
    for phrase in phrases:
        place = text.find(phrase)
        if place >= 0:
            return text[place + len(phrase) + 1 :]
    return None


def _alone(text: str, letters: str) -> str | None:
    match = re.search(rf"\b[{letters}]\b(?!.*\b[{letters}]\b)", text)
    return match[0] if match else None
