"""Answers as multisets of words, and how much two of them share: what LongBench and InfiniteBench count alike."""

import re
import string
from collections import Counter
from collections.abc import Sequence

CHINESE_MARKS = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠"
    "｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
"""Punctuation that Chinese answers are compared without, besides that of ASCII; 《 and · are not among it."""
ASCII = dict.fromkeys(map(ord, string.punctuation))
"""What takes away the punctuation of ASCII, as `str.translate` reads it."""
ALL = dict.fromkeys(map(ord, string.punctuation + CHINESE_MARKS))
"""What takes away Chinese punctuation too."""
ARTICLE = re.compile(r"\b(a|an|the)\b")


def english(text: str) -> list[str]:
    """The words of a text in lower case, without ASCII punctuation, then without the words a, an, the.

    Punctuation is deleted, so that "state-of-the-art" is one word. Typographic quotes stay.
    """
    return ARTICLE.sub(" ", text.lower().translate(ASCII)).split()


def f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of two multisets: `2 P R / (P + R)`, 0 where none is shared, also where both have none."""
    shared = sum((Counter(found) & Counter(wanted)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(found), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)
