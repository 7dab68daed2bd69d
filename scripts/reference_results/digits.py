"""How many digits of a needle's number an answer begins with: where an eviction cuts a number off.

The right number is what the full cache answers, of prompts where that is right.
"""

import re
from collections.abc import Iterable
from itertools import takewhile

from kvbench.records import Row

NUMBER = re.compile(r"\d+")
HEAD = (
    "| | prompts | digits right, of 7 | none | 1 to 3 | 4 to 6 | all |\n| :-- | --: | --: | --: | --: | --: | --: |\n"
)


def right_numbers(full: Iterable[Row]) -> dict[tuple[str, int], str]:
    """The number that each prompt asks for, by task and sample."""
    return {
        (row.task, row.sample): match[0]
        for row in full
        if row.value == 1 and (match := NUMBER.search(row.prediction or "")) is not None
    }


def digits_right(row: Row, number: str) -> int:
    """Digits of the first number of an answer that agree with the right one, from the first."""
    answered = NUMBER.search(row.prediction or "")
    pairs = zip(answered[0] if answered else "", number, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def digits_line(label: str, rows: Iterable[Row], numbers: dict[tuple[str, int], str]) -> str:
    """A line of the table: prompts, mean, and how many prompts have none, a few, most and all digits.

    Raises ValueError for a selection of several cells of a task, or of none.
    """
    asked = [(row, number) for row in rows if (number := numbers.get((row.task, row.sample))) is not None]
    prompts = {(row.task, row.sample) for row, _ in asked}
    if not asked or len(prompts) != len(asked):
        raise ValueError(f"{label}: {len(asked)} rows of {len(prompts)} prompts")
    shares = [(digits_right(row, number), len(number)) for row, number in asked]
    mean = sum(7 * right / length for right, length in shares) / len(shares)
    none = sum(right == 0 for right, _ in shares)
    few = sum(1 <= right <= 3 for right, _ in shares)
    whole = sum(right == length for right, length in shares)
    most = len(shares) - none - few - whole
    return f"| {label} | {len(asked)} | {mean:.1f} | {none} | {few} | {most} | {whole} |\n"
