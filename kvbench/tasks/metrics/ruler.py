"""The metrics of RULER: scripts/eval/synthetic/constants.py and scripts/eval/evaluate.py.

https://github.com/NVIDIA/RULER at c3f5e3b.
"""

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the answer, 0..1: `|{r in R : lower(r) in lower(p)}| / |R|`.

    The answer is postprocessed as the official evaluation does it: white space stripped at both ends, each control
    character (newline and tab too) replaced by a newline, stripped again. Matching is by substring: "12345678" contains
    "1234567".

    Aggregation: the mean over samples; the official number is x 100, rounded to two digits.

    Namesakes that differ: kvpress deletes control characters, which joins what stood on two lines ("123\\n4567" then
    matches 1234567); lm-evaluation-harness agrees on this one and differs on `string_match_part`.

    Raises:
        ValueError: no references.
    """
    if not references:
        raise ValueError("string_match_all needs at least one reference, got none")
    answer = _CONTROL.sub("\n", prediction.strip()).strip().lower()
    return sum(reference.lower() in answer for reference in references) / len(references)
