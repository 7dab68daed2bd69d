"""Facts that the name of a task tells: the range of a score, how many prompts there are, and their texts."""

from typing import NamedTuple

from kvbench.extras.audit.pairs import FACTORS
from kvbench.support.errors import UserError
from kvbench.tasks.longbench import METRICS

ROWS = {"multifieldqa_en": 150, "lcc": 500, "repobench-p": 500}
"""Rows of LongBench's tasks; of the others 200."""
TEXTS = {"multifieldqa_zh": 142}
"""Distinct texts of LongBench's tasks whose questions share them."""
METRIC_KINDS = {"qa_f1": "f1", "rouge": "rouge", "code_sim": "code"}
ALLOWED = ("binary", "parts=4", *FACTORS)


class Scores(NamedTuple):
    """parts: equal parts of a prompt's score, None for any size. factor: its variance over p (1 - p)."""

    parts: int | None
    factor: float


def scores_of(kind: str) -> Scores:
    """Return the scores of a name. Raises UserError for another one.

    `binary` is right or wrong, `parts=4` of four equal parts, `f1`, `rouge`, `code` and `graded` (which is as wide as
    right and wrong) are of any size.
    """
    if kind == "binary":
        return Scores(1, 1.0)
    name, equals, number = kind.partition("=")
    if name == "parts" and equals and number.isdecimal() and int(number) > 0:
        return Scores(int(number), 1.0)
    if kind not in FACTORS:
        raise UserError(f"scores={kind}: allowed: {', '.join(ALLOWED)}")
    return Scores(None, FACTORS[kind])


def kind_of_longbench(task: str) -> str | None:
    """Return the kind of scores of a task of LongBench; None for another task."""
    member = task.removeprefix("longbench/")
    if member not in METRICS:
        return None
    return next((kind for metric, kind in METRIC_KINDS.items() if METRICS[member].startswith(metric)), "graded")


def rows_of_longbench(task: str) -> tuple[int, int | None]:
    """Return the rows of a task of LongBench, and its distinct texts where they are fewer."""
    member = task.removeprefix("longbench/")
    return ROWS.get(member, 200), TEXTS.get(member)
