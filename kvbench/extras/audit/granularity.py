"""Whether a printed number can be the mean that an item says it is: the granularity of means.

A mean of n samples, each right or wrong, is k / n. RULER's string_match_all counts the m references that an answer
holds, so that a mean is k / (n m); a needle's words are counted out of 11. F1, ROUGE and the other metrics that divide
by something of the answer, all of LongBench's among them, have means of any size. So has a mean over contexts, which
have their own numbers of questions. A mean of means has the common denominator of its parts.

A printed number stands for every number that rounds to it. It is possible if one of them is a multiple of the step.
That is necessary, not sufficient: an impossible number was made from another n, scorer or average than the item's.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from kvbench.config.overrides import parse
from kvbench.papers.cells import cells_of_item
from kvbench.papers.item import At, Item, Published
from kvbench.papers.published import published
from kvbench.support.grouped import grouped
from kvbench.tasks.needle import ANSWER
from kvbench.tasks.task import Task

PARTS = {"niah_multivalue": 4, "niah_multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}
"""References of a sample of RULER's tasks of which string_match_all counts several."""
ROWS = {
    "passkey": 590,
    "number_string": 590,
    "kv_retrieval": 500,
    "longbook_choice_eng": 229,
    "longdialogue_qa_eng": 200,
    "code_debug": 394,
    "code_run": 400,
    "math_find": 350,
}
"""Rows of InfiniteBench's tasks that are right or wrong, as its README lists them."""
RIGHT_OR_WRONG = re.compile(
    "string_match_part|nolima_contains|needle_inclusion|repoqa_pass_at_1|longbench_v2_letter|boxed_value"
    "|babilong_match|dfs_state_match|graphwalks_exact|ruler_v2_multichoice"
    "|kvzip_(inclusion|first_line|exact|option|solution)"
)
"""Other metrics whose scores are 0 or 1."""
SCALES = {"percent": 100, "rate": 1}
"""Units of means in 0..1, and what a mean is multiplied by."""
KEYS = ("task", "context_length", "kind")
"""The keys of a layout that tell which prompts a number is about."""
ANY_METHOD = (
    *("model=reference", "policy=full", "score=attn", "budget=1.0"),
    *("schedule.evict_after=prompt", "schedule.prefill_block=null"),
)
"""Settings that leave of an item its prompts alone."""


@dataclass(frozen=True)
class Impossible:
    """A printed number that is no mean of its item's samples. step: of the possible ones, in the number's unit."""

    item: str
    number: Published
    step: Fraction

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.item, *self.number.at)))
        reason = self.number.flag.replace("_", " ") or "no reason is recorded"
        return f"{place}: {self.number.value} is no multiple of {float(self.step):.4g} ({reason})"


def impossible(item: Item, folder: Path) -> list[Impossible]:
    """Return the printed numbers of an item, read from `folder`, that no answers to its samples give.

    Left out are differences, wins, means of several printed numbers, and averages by weights.
    """
    numbers = [number for number in published(item, folder) if _is_mean(item, number)]
    tasks = _tasks(item) if numbers else {}
    unreachable = []
    for number in numbers:
        places = [_prompts(item, part.at) for part in _behind(item, number, numbers)]
        step = step_of([task for place in places for task in tasks.get(place, ())])
        if step is not None and not is_possible(number.value, step * SCALES[number.unit]):
            unreachable.append(Impossible(item.name, number, step * SCALES[number.unit]))
    return unreachable


def is_possible(value: str, step: Fraction) -> bool:
    """Return whether a multiple of `step` rounds to a printed value, halves up or down."""
    half = Fraction(1, 2 * 10 ** len(value.partition(".")[2]))
    return math.floor((Fraction(value) + half) / step) * step >= Fraction(value) - half


def step_of(tasks: Iterable[Task]) -> Fraction | None:
    """Return the step of the means over the answers of these tasks, which weigh the same, in 0..1; None if there is
    none.
    """
    sizes: list[int] = []
    for task in tasks:
        parts = parts_of(task)
        if parts is None:
            return None
        sizes.append(parts * answers_of(task))
    return Fraction(1, len(sizes) * math.lcm(*sizes)) if sizes else None


def answers_of(task: Task) -> int:
    """Return the answers behind the mean of a task: as many as are asked for, or as the benchmark has."""
    family, _, member = task.name.partition("/")
    return min(task.num_answers, ROWS[member]) if family == "infinitebench" and member in ROWS else task.num_answers


def parts_of(task: Task) -> int | None:
    """Return how many equal parts the score of a sample has: 1 if it is right or wrong; None if it can be of any
    size.
    """
    family, _, member = task.name.partition("/")
    if task.metric == "string_match_all":
        return PARTS.get(member, 1)
    if task.metric.startswith("needle_words"):
        return len({*ANSWER.lower().split()})
    if family == "infinitebench":
        return 1 if member in ROWS else None
    return 1 if RIGHT_OR_WRONG.fullmatch(task.metric) else None


def _is_mean(item: Item, number: Published) -> bool:
    """Return whether a number is a mean over samples that are not LongBench's."""
    layout = item.layout
    if type(item) is not Item or layout.words or item.mean_over != "questions" or layout.against:
        return False
    if not number.value or number.flag.startswith("mean of") or number.unit not in SCALES:
        return False
    return not number.task.startswith("longbench") and (not item.is_average(number.at) or layout.average == "plain")


def _tasks(item: Item) -> dict[At, list[Task]]:
    """Return the tasks of an item by the values of the keys of its layout that are in `KEYS`."""
    entries = cells_of_item(item, parse(ANY_METHOD)).entries
    by_place = grouped(entries, lambda entry: _prompts(item, entry.at))
    return {at: list(dict.fromkeys(entry.cell.task for entry in members)) for at, members in by_place.items()}


def _prompts(item: Item, at: At) -> At:
    return tuple(value for key, value in zip(item.keys, at, strict=True) if key in KEYS)


def _behind(item: Item, number: Published, numbers: Sequence[Published]) -> list[Published]:
    """Return the numbers of a line that a printed average is the mean of; the number itself if it is no average."""
    if not item.is_average(number.at):
        return [number]
    line = item.line(number.at)
    return [other for other in numbers if item.line(other.at) == line and not item.is_average(other.at)]
