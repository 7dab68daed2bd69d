"""The scores of the needle heat-map in papers on eviction: words that answer and needle share, 0..1."""

from kvbench.tasks.metrics.packages import rouge_scorer

ANSWER = "eat a sandwich and sit in Dolores Park on a sunny day."
"""The answer in the needle: eleven distinct words, the last with its full stop."""


def overlap(prediction: str) -> float:
    """Share of the answer's words that the prediction has: `|words(lower(p)) & words(lower(a))| / 11`.

    Words are split at white space, so that "day" is not "day.": as plotted by KVCache-Factory (PyramidKV)
    and Long-Context-Data-Engineering (visualize.py).
    """
    answer = set(ANSWER.lower().split())
    return len(answer & set(prediction.lower().split())) / len(answer)


def overlap_without_dots(prediction: str) -> float:
    """`overlap` with a blank for every full stop, in prediction and answer.

    So "day.Then" holds the word "day", and "10 a.m." holds the answer's "a": as plotted by LAVa
    (run_needle_visulize.py).
    """
    answer, words = (set(text.lower().replace(".", " ").split()) for text in (ANSWER, prediction))
    return len(answer & words) / len(answer)


def rouge1(prediction: str, needle: str) -> float:
    """F of the stemmed words that prediction and needle share, by rouge-score; 0 for an empty prediction.

    The number that the official-style testers store is x 10. A perfect answer scores 0.727, because the needle has
    eight words more than the answer. kvpress uses the package `rouge`, with prediction and needle exchanged.

    Raises UserError if rouge-score is not installed.
    """
    scorer = rouge_scorer("task.scorer=rouge1", "rouge1", use_stemmer=True)
    return float(scorer.score(needle, prediction)["rouge1"].fmeasure) if prediction else 0.0
