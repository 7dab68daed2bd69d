"""The score of a mathematical answer: its last boxed expression, compared with the reference.

Namesakes that differ: kvpress (math500, aime25) ends the expression at the first closing brace and compares texts, so
that 103 of the 500 reference answers of MATH-500 score 0 against themselves.
"""

import atexit
import multiprocessing
from functools import cache
from multiprocessing.pool import Pool

from kvbench.tasks.metrics.packages import pinned

SECONDS = 20.0
"""The time limit of a comparison, with a process's start: sympy may compute without end."""
VERSION = "0.9.0"


def boxed(answer: str) -> str | None:
    """What the last `\\boxed{...}` of an answer holds, braces balanced as in LaTeX; None if none closes."""
    start = answer.rfind("\\boxed{")
    if start < 0:
        return None
    content, depth, escaped = answer[start + len("\\boxed{") :], 1, False
    for at, character in enumerate(content):
        if not escaped and character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return content[:at]
        escaped = character == "\\" and not escaped
    return None


def same_value(prediction: str, reference: str) -> float:
    """1 if the last boxed expression of an answer equals the reference, both LaTeX: as texts without blanks, or by
    math-verify (numbers, fractions, tuples, sets, intervals, symbolic expressions). 0 without a box, and if the
    comparison takes longer than `SECONDS`.

    Raises UserError if math-verify is not installed at its pinned version.
    """
    value = boxed(prediction)
    if value is None:
        return 0.0
    if "".join(value.split()) == "".join(reference.split()):
        return 1.0
    try:
        return float(_child().apply_async(equal, (value, reference)).get(SECONDS))
    except multiprocessing.TimeoutError:
        _child().terminate()
        _child.cache_clear()
        return 0.0


def equal(value: str, reference: str) -> bool:
    """Whether math-verify finds two LaTeX expressions equal. Runs in a process of its own."""
    pinned("math-verify", VERSION, "math_verify")
    from math_verify import parse, verify

    return verify(parse(f"\\boxed{{{reference}}}"), parse(f"\\boxed{{{value}}}"))


def check_package() -> None:
    """Raise UserError with the fix if math-verify is missing."""
    pinned("math-verify", VERSION, "math_verify")


@cache
def _child() -> Pool:
    pool = multiprocessing.get_context("spawn").Pool(1)
    atexit.register(pool.terminate)
    return pool
