"""LongBench's ROUGE-L: `rouge_score` and `rouge_zh_score` of LongBench/metrics.py in THUDM/LongBench.

Both are `rouge-l` F of the package `rouge` 1.0.1 against one reference, 0..1. Aggregation: the maximum over references,
then the mean over samples; the official number is x 100, rounded to two digits.

That package walks a longest common subsequence back by recursion, a call for each word that it steps over. Where Python
ends that, the official scorer gives 0. Python counts the calls of whoever asks too; here a thread of its own asks, as
deep as the official script, so that a score does not depend on where it is computed.
"""

import sys
from functools import lru_cache
from threading import Thread
from typing import Any

from kvbench.tasks.metrics import chinese
from kvbench.tasks.metrics.pinned import pinned

DEEPEST = 1000
"""Calls that Python nests unless it is told otherwise."""


def rouge(prediction: str, reference: str) -> float:
    """F of ROUGE-L at the level of summaries: `2 P R / (P + R + 1e-8)`, so that a perfect answer has 0.999999995.

    P and R are the words in the union of the longest common subsequences of all pairs of sentences, over the distinct
    words of prediction and of reference. Sentences end at every "." (also in 3.5), words at white space; case counts,
    nothing is stemmed. 0 for a text without sentences (empty, or only dots) and where the recursion is too deep: some
    980 words of both texts together stepped over in one pair of sentences.

    Namesakes that differ: rouge-score (InfiniteBench, the needle heat-map) lowers case, can stem, drops punctuation,
    and counts words as often as they occur.

    Raises:
        ValueError: rouge 1.0.1 is not installed.
    """
    asking = _Asking(scorer(), prediction, reference)
    asking.start()
    asking.join()
    if asking.failure is not None:
        raise asking.failure
    return asking.value


def rouge_zh(prediction: str, reference: str) -> float:
    """`rouge` of jieba's words with a blank between them. Only "." ends a sentence: most Chinese texts are one.

    Raises:
        ValueError: rouge 1.0.1 or jieba 0.42.1 is not installed.
    """
    return rouge(" ".join(chinese.words(prediction)), " ".join(chinese.words(reference)))


@lru_cache
def scorer() -> Any:
    """What computes F of ROUGE-L alone. Raises ValueError where rouge 1.0.1 is not installed."""
    return pinned("rouge", "1.0.1").Rouge(metrics=["rouge-l"], stats=["f"])


class _Asking(Thread):
    """One score, three calls deep as in the official script: a thread begins with two."""

    def __init__(self, scorer: Any, prediction: str, reference: str) -> None:
        super().__init__(name="rouge")
        self.scorer, self.texts = scorer, (prediction, reference)
        self.value, self.failure = 0.0, None

    def run(self) -> None:
        limit = sys.getrecursionlimit()
        if limit != DEEPEST:
            sys.setrecursionlimit(DEEPEST)
        try:
            self.value = float(self.scorer.get_scores([self.texts[0]], [self.texts[1]], avg=True)["rouge-l"]["f"])
        except (ValueError, RecursionError):
            self.value = 0.0  # as officially: no sentences, or too many words
        except Exception as error:
            self.failure = error
        finally:
            if limit != DEEPEST:
                sys.setrecursionlimit(limit)
