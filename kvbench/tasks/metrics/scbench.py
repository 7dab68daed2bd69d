"""SCBench's scores that no other benchmark has: scbench/compute_scores.py of microsoft/MInference at fb56c91.

Each function scores one answer against its references, in 0..1. The others are those of InfiniteBench.
"""

import re
from collections.abc import Sequence

from kvbench.tasks.metrics import infinitebench


def contains(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer contains the first reference, character by character."""
    return float(infinitebench.first(references) in prediction)


def contains_any(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer contains one of the references, regardless of case."""
    answer = prediction.strip().upper()
    return float(any(reference.upper() in answer for reference in references))


def share(prediction: str, references: Sequence[str]) -> float:
    """Share of the references that the answer contains, regardless of case, rounded to two decimals."""
    infinitebench.first(references)
    answer = prediction.lower()
    return round(sum(reference.lower() in answer for reference in references) / len(references), 2)


def number(prediction: str, references: Sequence[str]) -> float:
    """1 if the first number of the answer equals the label: without its sign, and for a whole label its fraction."""
    label, match = infinitebench.number(infinitebench.first(references)), re.search(r"\d+\.\d+|\d+", prediction)
    if match is None:
        return 0.0
    value = float(match[0])
    return float((int(value) if isinstance(label, int) and value < float("inf") else value) == label)
