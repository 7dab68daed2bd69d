"""HELMET's metrics without a judge: utils.py and `post_process` in data.py of princeton-nlp/HELMET at 4526dfb.

Answers are those after `prefix`, the end of a prompt without a chat template ("Answer:"), which the official code puts
before them again.
"""

import math
import re
from collections.abc import Mapping, Sequence

from kvbench.tasks.metrics.words import english


def substring(text: str, references: Sequence[str], prefix: str) -> float:
    """1 if a reference occurs in the text or in its first answer, words compared without articles and punctuation."""
    texts = [_joined(text), _joined(first_answer(text, prefix))]
    return float(any(_joined(reference) in part for reference in references for part in texts))


def exact(text: str, references: Sequence[str], prefix: str) -> float:
    """1 if the first answer equals a reference, words compared without articles and punctuation."""
    return float(_joined(first_answer(text, prefix)) in [_joined(reference) for reference in references])


def recall(text: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the text, regardless of case."""
    return sum(reference.lower() in text.lower() for reference in references) / len(references)


def first_answer(text: str, prefix: str) -> str:
    """The rest of the line after the first `prefix`, or the first line without one; a repeated prefix is dropped."""
    match = re.search(f"{prefix}(.*)", text, re.IGNORECASE) or re.match("(.*)", text)
    assert match is not None
    return re.sub(f"^{prefix}", "", match[1].strip(), flags=re.IGNORECASE).strip()


def ranking(text: str) -> list[str]:
    """The distinct ids of the longest chain such as "[3] > [1]"; the whole text, changed, if it has no number."""
    text = re.sub(r"[\[\]:]", "", text).lower().replace("id", "")
    chains = [match[0] for match in re.finditer(r"\d+(?:\s*>\s*\d+)*", text)]
    ids = [part.strip() for part in max(chains, key=len).split(">")] if chains else [text]
    return list(dict.fromkeys(name for name in ids if not chains or name.isdigit()))


def ndcg(ranked: Sequence[str], relevance: Mapping[str, int], depth: int = 10) -> float:
    """NDCG of the first `depth` ids as trec_eval computes it, with the relevance as gain; rounded to five digits."""
    gains = [relevance.get(name, 0) for name in ranked]
    best = _discounted(sorted(relevance.values(), reverse=True)[:depth])
    return round(_discounted(gains[:depth]) / best, 5) if best else 0.0


def _discounted(gains: Sequence[int]) -> float:
    return sum(max(gain, 0) / math.log2(place + 2) for place, gain in enumerate(gains))


def _joined(text: str) -> str:
    return " ".join(english(text))
