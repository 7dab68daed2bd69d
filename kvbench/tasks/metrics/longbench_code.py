"""LongBench's similarity of code: `code_sim_score` of LongBench/metrics.py in THUDM/LongBench."""

import difflib
from functools import lru_cache
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.pinned import pinned


def code_sim(prediction: str, reference: str) -> float:
    """`fuzz.ratio / 100` of one line of the answer and the reference, a whole percentage: `2 M / T`, rounded, 0..1.

    M is what the blocks of difflib.SequenceMatcher match, T the letters of both. The line is the first, after leading
    line breaks, without backtick, "#" and "//"; an empty one counts, so that "//x", an empty line and code score 0.
    Aggregation: the maximum over references, then the mean over samples; the official number is x 100, rounded to two
    digits.

    Namesakes that differ: fuzzywuzzy with python-Levenshtein matches other blocks and is refused; rapidfuzz does not
    round; lm-evaluation-harness passes over empty lines.

    Raises:
        ValueError: fuzzywuzzy 0.18.0 is not installed, or python-Levenshtein is.
    """
    lines = prediction.lstrip("\n").split("\n")
    line = next((one for one in lines if not any(mark in one for mark in ("`", "#", "//"))), "")
    return fuzz().ratio(line, reference) / 100


@lru_cache
def fuzz() -> Any:
    """What compares two lines. Raises ValueError where it is not installed or would compare otherwise."""
    module = pinned("fuzzywuzzy", "0.18.0", "fuzzywuzzy.fuzz")
    if module.SequenceMatcher is not difflib.SequenceMatcher:
        raise UserError(
            "fuzzywuzzy compares by python-Levenshtein where that is installed, which changes the scores of code; "
            "run: pip uninstall -y python-Levenshtein Levenshtein"
        )
    return module
