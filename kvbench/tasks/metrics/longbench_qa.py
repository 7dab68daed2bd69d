"""LongBench's F1 of words: `qa_f1_score` and `qa_f1_zh_score` of LongBench/metrics.py in THUDM/LongBench.

Each is one answer's worth against one reference in 0..1. Aggregation: the maximum over references, then the mean over
samples; the official number is x 100, rounded to two digits.
"""

from kvbench.tasks.metrics import chinese
from kvbench.tasks.metrics.words import ALL, english, f1


def qa_f1(prediction: str, reference: str) -> float:
    """F1 of the multisets of words: `2 P R / (P + R)`, 0 where none is shared, also where both have none.

    Lower case; ASCII punctuation deleted, so that "state-of-the-art" is one word; then the words a, an, the blanked.
    Typographic quotes stay.

    Namesakes: InfiniteBench's qa_english is the same; SCBench in KVzip also reads digits as words.
    """
    return f1(english(prediction), english(reference))


def qa_f1_zh(prediction: str, reference: str) -> float:
    """F1 of the multisets of jieba's words, lower case, without white space and the punctuation of ASCII and Chinese.

    The text is cut into words as it is; each word loses its punctuation afterwards, and empty ones go.

    Namesakes that differ: InfiniteBench's qa_chinese counts characters.

    Raises:
        ValueError: jieba 0.42.1 is not installed.
    """
    return f1(_chinese(prediction), _chinese(reference))


def _chinese(text: str) -> list[str]:
    bare = ("".join(word.lower().translate(ALL).split()) for word in chinese.words(text))
    return [word for word in bare if word]
