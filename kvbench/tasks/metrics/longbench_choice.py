"""LongBench's scores of a choice: `classification_score`, `retrieval_score`, `retrieval_zh_score` and `count_score`.

From LongBench/metrics.py in THUDM/LongBench. Each is one answer's worth against one reference in 0..1. Aggregation: the
maximum over references, then the mean over samples; the official number is x 100, rounded to two digits.
"""

import re
from collections.abc import Sequence

from kvbench.support.errors import UserError


def classification(prediction: str, reference: str, classes: Sequence[str]) -> float:
    """`1 / n` if the reference is among the n classes that the answer names, else 0.

    A class is named where it is a part of the answer, upper and lower case apart. Of those named, a class that is a
    part of the reference and not all of it is taken out; but each time one goes, the next is passed over. So for the
    reference "abc" the answer "a ab abc" loses "a", keeps "ab" and scores 1/2, as officially.

    Namesakes that differ: longctx_bench falls back to the class that is most similar.
    """
    named = [one for one in classes if one in prediction]
    place = 0
    while place < len(named):
        part = named[place] in reference and named[place] != reference
        if part:
            named.remove(named[place])  # the first that equals it: a list of classes may have one twice
        place += 1
    return 1 / len(named) if reference in named else 0.0


def retrieval(prediction: str, reference: str) -> float:
    """Share of the answer's whole numbers that equal the one of the reference "Paragraph 15", as texts; 0 without any.

    Raises:
        ValueError: the reference names no paragraph.
    """
    return _share(prediction, _named(r"Paragraph (\d+)", reference))


def retrieval_zh(prediction: str, reference: str) -> float:
    """`retrieval` for a reference such as "段落15". Raises ValueError where it names no paragraph."""
    return _share(prediction, _named(r"段落(\d+)", reference))


def count(prediction: str, reference: str) -> float:
    """Share of the answer's whole numbers that equal the reference, as texts; 0 without any. "8.0" holds 8 and 0."""
    return _share(prediction, reference)


def _named(pattern: str, reference: str) -> str:
    found = re.search(pattern, reference)
    if found is None:
        raise UserError(f"the reference {reference[:80]!r} names no paragraph as {pattern!r} does")
    return found[1]


def _share(prediction: str, wanted: str) -> float:
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0
