"""The three tasks that LAVa and kvpress score more generously than InfiniteBench does.

From experiments/InfiniteBench/src/compute_scores.py of MGDDestiny/Lava at 0873e81; kvpress gives the same on the
released answers. LAVa's table of InfiniteBench needs these. Each is one answer's worth in 0..1, its number the mean
over rows.
"""

import re
from collections.abc import Sequence

from kvbench.tasks.metrics import infinitebench as official
from kvbench.tasks.metrics.infinitebench import DEBUG_PREFIXES, after, first, pair, without_marks


def longdialogue(prediction: str, references: Sequence[str]) -> float:
    """1 if any label is a part of the answer, upper and lower case alike, else 0.

    The official scorer knows the first label alone and wants it as one word.
    """
    first(references)
    answer = prediction.strip().upper()
    return float(any(reference.upper() in answer for reference in references))


def choice(prediction: str, references: Sequence[str]) -> float:
    """1 if the first letter of A to D that stands alone and is the last such one on its line is right; else officially.

    So "A or B" counts for B as well as for A.
    """
    first(references)
    alone = _alone(prediction.strip(), "A-D")
    return 1.0 if alone in references else official.choice(prediction, references)


def code_debug(prediction: str, references: Sequence[str]) -> float:
    """1 if letter or name are found by one of three rules, else 0.

    The rules: the first letter of A to J that stands alone and is the last such one on its line is the right one; the
    answer, marks blanked, begins with letter or name; so does what follows a phrase (`DEBUG_PREFIXES`).
    """
    name, letter = pair(references)
    answer = prediction.strip()
    if _alone(answer, "A-J") == letter:
        return 1.0
    answer = without_marks(answer)
    if answer.startswith((letter, name)):
        return 1.0
    rest = after(answer, DEBUG_PREFIXES)
    return float(rest is not None and rest.startswith((letter, name)))


def _alone(text: str, letters: str) -> str | None:
    found = re.search(rf"\b[{letters}]\b(?!.*\b[{letters}]\b)", text)
    return found[0] if found else None
