"""Common parts of metrics of several benchmarks: packages that define them, and answers as multisets of words.

Another release of a package is another metric, so the release is checked; packages are imported when needed.
"""

import importlib
import re
import string
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from typing import Any

from kvbench.support.errors import UserError

FIX = "pip install 'kvbench[benchmarks]'"
CHINESE_MARKS = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠"
    "｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
"""Punctuation that Chinese answers are compared without, besides ASCII punctuation; 《 and · are not in it."""
ASCII = dict.fromkeys(map(ord, string.punctuation))
"""Table for `str.translate` that deletes ASCII punctuation; `ALL` also deletes Chinese punctuation."""
ALL = dict.fromkeys(map(ord, string.punctuation + CHINESE_MARKS))
ARTICLE = re.compile(r"\b(a|an|the)\b")


def pinned(
    package: str, version: str, module: str | None = None, *, purpose: str = "the metric is that of", fix: str = FIX
) -> Any:
    """Return the module of a package at exactly this version, imported without its warnings.

    Raises UserError that says what it is for: it is not installed, or at another version.
    """
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UserError(f"{purpose} {package} {version}, which is not installed; run: {fix}") from None
    if installed != version:
        raise UserError(f"{purpose} {package} {version}, installed is {installed}; run: {fix}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module or package)


@lru_cache
def rouge_scorer(task: str, kind: str, use_stemmer: bool) -> Any:
    """Return a scorer of one kind of ROUGE. Raises UserError that names `task` if rouge-score is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ModuleNotFoundError:
        raise UserError(f"{task} needs rouge-score; run: {FIX}") from None
    return RougeScorer([kind], use_stemmer=use_stemmer)


def english(text: str) -> list[str]:
    """Return the words of a text in lower case, without ASCII punctuation, then without the words a, an, the.

    Punctuation is deleted, so that "state-of-the-art" is one word. Typographic quotes stay.
    """
    return ARTICLE.sub(" ", text.lower().translate(ASCII)).split()


def chinese(text: str) -> list[str]:
    """Return the words of a text by jieba 0.42.1 in exact mode; white space and punctuation are words of their own."""
    return list(jieba_tokenizer().cut(text, cut_all=False))


@lru_cache
def jieba_tokenizer() -> Any:
    """Return a tokenizer with the package's own dictionary; jieba's default reads a cached one from /tmp."""
    jieba = pinned("jieba", "0.42.1")
    tokenizer = jieba.Tokenizer()
    with tokenizer.get_dict_file() as file:
        tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(file)
    tokenizer.initialized = True
    return tokenizer


def f1(predicted: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two multisets: `2 P R / (P + R)`, 0 if they share nothing, also if both are empty."""
    shared = sum((Counter(predicted) & Counter(reference)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(reference)
    return 2 * precision * recall / (precision + recall)
