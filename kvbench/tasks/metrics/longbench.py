"""LongBench's metrics: LongBench/metrics.py of THUDM/LongBench.

Each function scores one answer against one reference in 0..1. Aggregation: the maximum over references, then the mean
over samples; the official number is x 100, rounded to two digits. A metric raises UserError if its package is missing.
"""

import difflib
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from threading import Thread
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.packages import pinned
from kvbench.tasks.metrics.words import ALL, chinese, english, f1

RECURSION_LIMIT = 1000  # Python's default


def qa_f1(prediction: str, reference: str) -> float:
    """`qa_f1_score`: F1 (`words.f1`) of the multisets of words as `words.english` splits them.

    Namesakes: InfiniteBench's qa_english is the same; SCBench in KVzip also reads digits as words.
    """
    return f1(english(prediction), english(reference))


def qa_f1_zh(prediction: str, reference: str) -> float:
    """`qa_f1_zh_score`: F1 of jieba's words, lower case, without white space, ASCII and Chinese punctuation.

    The text is split into words as it is; each word loses its punctuation afterwards, and empty words are dropped.
    InfiniteBench's qa_chinese counts characters.
    """
    return f1(_chinese_words(prediction), _chinese_words(reference))


def rouge(prediction: str, reference: str) -> float:
    """`rouge_score`: F of summary-level ROUGE-L by rouge 1.0.1: `2 P R / (P + R + 1e-8)`, 0.999999995 at best.

    P and R are the words in the union of the longest common subsequences of all pairs of sentences, over the distinct
    words of prediction and of reference. Sentences end at every "." (also in 3.5), words at white space; case counts,
    nothing is stemmed. 0 for a text without sentences (empty, or only dots) and if the recursion is too deep: about
    980 words of both texts together skipped in one pair of sentences.

    That package finds a longest common subsequence by recursion, with one call for each skipped word; if Python's
    limit ends it, the official scorer gives 0. The limit includes the caller's own depth, so the score is computed in
    a thread of its own at the depth of the official script: it does not depend on the caller.

    Namesakes that differ: rouge-score (InfiniteBench, the needle heat-map) lowers case, can stem, drops punctuation,
    and counts words as often as they occur.
    """
    thread = _RougeThread(rouge_package(), prediction, reference)
    thread.start()
    thread.join()
    if thread.failure is not None:
        raise thread.failure
    return thread.value


def rouge_zh(prediction: str, reference: str) -> float:
    """`rouge_zh_score`: `rouge` of jieba's words joined by blanks. Only "." ends a sentence: most texts are one."""
    return rouge(" ".join(chinese(prediction)), " ".join(chinese(reference)))


@lru_cache
def rouge_package() -> Any:
    """The scorer of rouge 1.0.1, for F of ROUGE-L only."""
    return pinned("rouge", "1.0.1").Rouge(metrics=["rouge-l"], stats=["f"])


def classification(prediction: str, reference: str, classes: Sequence[str]) -> float:
    """`classification_score`: `1 / n` if the reference is one of the n classes that the answer names, else 0.

    An answer names a class if it contains it, case-sensitively. Of the named classes, one that is a proper part of the
    reference is removed, but after each removal the next class is skipped. So for the reference "abc" the answer
    "a ab abc" loses "a", keeps "ab" and scores 1/2, as officially. longctx_bench falls back to the most similar class.
    """
    named = [name for name in classes if name in prediction]
    place = 0
    while place < len(named):
        if named[place] in reference and named[place] != reference:
            named.remove(named[place])  # the first that equals it: a list of classes may have one twice
        place += 1
    return 1 / len(named) if reference in named else 0.0


def retrieval(prediction: str, reference: str) -> float:
    """`retrieval_score`: `count` of the number in a reference such as "Paragraph 15".

    Raises UserError if the reference names no paragraph.
    """
    return count(prediction, _paragraph(r"Paragraph (\d+)", reference))


def retrieval_zh(prediction: str, reference: str) -> float:
    """`retrieval_zh_score`: `retrieval` for a reference such as "段落15"."""
    return count(prediction, _paragraph(r"段落(\d+)", reference))


def count(prediction: str, reference: str) -> float:
    """`count_score`: share of the answer's whole numbers that equal the reference, as texts; 0 without any.

    "8.0" holds 8 and 0.
    """
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(reference) / len(numbers) if numbers else 0.0


def code_sim(prediction: str, reference: str) -> float:
    """`code_sim_score`: `fuzz.ratio / 100` of one line of the answer and the reference: `2 M / T`, whole percents.

    M is what the blocks of difflib.SequenceMatcher match, T the letters of both. The line is the first one, after
    leading line breaks, without backtick, "#" and "//"; an empty line counts, so that "//x", an empty line and code
    score 0.

    Namesakes that differ: fuzzywuzzy with python-Levenshtein matches other blocks and is refused; rapidfuzz does not
    round; lm-evaluation-harness skips empty lines.
    """
    lines = prediction.lstrip("\n").split("\n")
    code = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return fuzz().ratio(code, reference) / 100


@lru_cache
def fuzz() -> Any:
    """fuzzywuzzy's comparison of two lines. Raises UserError if it is not installed or would compare otherwise."""
    module = pinned("fuzzywuzzy", "0.18.0", "fuzzywuzzy.fuzz")
    if module.SequenceMatcher is not difflib.SequenceMatcher:
        raise UserError(
            "fuzzywuzzy compares by python-Levenshtein where that is installed, which changes the scores of code; "
            "run: pip uninstall -y python-Levenshtein Levenshtein"
        )
    return module


def _chinese_words(text: str) -> list[str]:
    bare = ("".join(word.lower().translate(ALL).split()) for word in chinese(text))
    return [word for word in bare if word]


def _paragraph(pattern: str, reference: str) -> str:
    match = re.search(pattern, reference)
    if match is None:
        raise UserError(f"the reference {reference[:80]!r} names no paragraph as {pattern!r} does")
    return match[1]


class _RougeThread(Thread):
    """One score, three calls deep as in the official script: a thread begins at depth two."""

    def __init__(self, scorer: Any, prediction: str, reference: str) -> None:
        super().__init__(name="rouge")
        self.scorer, self.texts = scorer, (prediction, reference)
        self.value, self.failure = 0.0, None

    def run(self) -> None:
        limit = sys.getrecursionlimit()
        if limit != RECURSION_LIMIT:
            sys.setrecursionlimit(RECURSION_LIMIT)
        try:
            self.value = float(self.scorer.get_scores([self.texts[0]], [self.texts[1]], avg=True)["rouge-l"]["f"])
        except (ValueError, RecursionError):
            self.value = 0.0  # as officially: no sentences, or too many words
        except Exception as error:
            self.failure = error
        finally:
            if limit != RECURSION_LIMIT:
                sys.setrecursionlimit(limit)
