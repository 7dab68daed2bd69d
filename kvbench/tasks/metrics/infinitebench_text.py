"""InfiniteBench's scorers of free answers: F1 of words or characters, and ROUGE of summaries.

From src/compute_scores.py of OpenBMB/InfiniteBench at 88b3daa. Each is one answer's worth in 0..1, the best over its
references; the benchmark's number is the mean over rows, which papers show x 100.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.infinitebench import first
from kvbench.tasks.metrics.words import ALL, english, f1


def qa_english(prediction: str, references: Sequence[str]) -> float:
    """F1 of the multisets of words: `2 P R / (P + R)`, 0 where none is shared.

    Lower case, without ASCII punctuation, then without the words a, an, the. The benchmark's page calls it ROUGE F1;
    it is the F1 of SQuAD and of LongBench.
    """
    first(references)
    answer = english(prediction)
    return max(f1(answer, english(reference)) for reference in references)


def qa_chinese(prediction: str, references: Sequence[str]) -> float:
    """F1 of the multisets of characters, lower case, without white space and punctuation of ASCII and Chinese.

    LongBench's namesake counts the words of jieba instead.
    """
    first(references)
    answer = _chinese(prediction)
    return max(f1(answer, _chinese(reference)) for reference in references)


def summary(prediction: str, references: Sequence[str]) -> float:
    """F of rougeLsum by rouge-score, without stemming: the union of longest common subsequences of all pairs of lines.

    Lines end at line breaks only. What `evaluate.load("rouge")` gives officially. LongBench's namesake is the rougeL of
    the package `rouge`, which knows no lines.

    Raises:
        ValueError: rouge-score is not installed.
    """
    first(references)
    return float(rouge().score_multi(list(references), prediction)["rougeLsum"].fmeasure)


@lru_cache
def rouge() -> Any:
    """The scorer of summaries. Raises ValueError where rouge-score is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        raise UserError("longbook_sum_eng is scored by rouge-score; run: pip install 'kvbench[benchmarks]'") from None
    return RougeScorer(["rougeLsum"], use_stemmer=False)


def _chinese(text: str) -> list[str]:
    return list("".join(text.lower().translate(ALL).split()))
