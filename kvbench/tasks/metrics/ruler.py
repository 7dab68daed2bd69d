"""The metrics of RULER: scripts/eval/synthetic/constants.py and scripts/eval/evaluate.py of NVIDIA/RULER at c3f5e3b.

The answer is postprocessed as in the official evaluation. Aggregation: the mean over samples; the official number is
x 100, rounded to two digits. Both raise UserError without references.
"""

import re
from collections.abc import Sequence

from kvbench.support.errors import UserError

_CONTROL = re.compile(r"[\x00-\x1f]")


def string_match_all(prediction: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the answer, 0..1: `|{r in R : lower(r) in lower(p)}| / |R|`.

    Substrings match: "12345678" contains "1234567". Namesakes: kvpress deletes control characters, which joins two
    lines ("123\\n4567" then matches 1234567); lm-evaluation-harness agrees.
    """
    answer = _checked(prediction, references)
    return sum(reference.lower() in answer for reference in references) / len(references)


def string_match_part(prediction: str, references: Sequence[str]) -> float:
    """Whether any of the references occurs in the answer, 0 or 1: `max over r in R of [lower(r) in lower(p)]`.

    For questions whose references are alternatives. Namesakes that differ: lm-evaluation-harness averages over the
    references of a sample (0.5 where one of two occurs).
    """
    answer = _checked(prediction, references)
    return float(any(reference.lower() in answer for reference in references))


def postprocessed(prediction: str) -> str:
    """Stripped of white space, each control character (newline and tab too) as a newline, stripped again."""
    return _CONTROL.sub("\n", prediction.strip()).strip()


def _checked(prediction: str, references: Sequence[str]) -> str:
    if not references:
        raise UserError("RULER's metrics need at least one reference, got none")
    return postprocessed(prediction).lower()
