"""LongProc's metrics that run no code: longproc_data.py and the evaluators of princeton-pli/LongProc at 78e873a.

Nothing of an answer is evaluated as Python, as countdown_evaluator.py does with its equations: one that is no equation
of two whole numbers scores 0, also where the official script ends with an error.
"""

import csv
import operator
import re
import string
from collections.abc import Sequence
from itertools import pairwise

from kvbench.tasks.metrics.words import english

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
FILLERS = re.compile(
    r"\b(a|an|the|on|in|at|the|step|thinks|think|believes|believe|is|are|of|location|know|knows|belief)\b"
)
MARKS = dict.fromkeys(map(ord, string.punctuation + "’"))


def tagged(answer: str, tag: str) -> str | None:
    """The text between the first <tag> and the first </tag>, None if either is missing."""
    start, end = answer.find(f"<{tag}>"), answer.find(f"</{tag}>")
    return None if -1 in (start, end) else answer[start + len(tag) + 2 : end].strip()


def route(answer: str, reference: str) -> float:
    """1 if the route is the reference, else 0."""
    return float(tagged(answer, "Route") == reference.strip())


def beliefs(answer: str, reference: str) -> float:
    """1 if all lines with a dash are those of the reference but for marks and small words, else 0."""
    return float(_beliefs(answer) == _beliefs(reference))


def _beliefs(text: str) -> list[str]:
    dashed = "\n".join(line for line in text.splitlines() if line.strip().startswith("-"))
    contents = (line[1:].strip() for line in dashed.strip().split("\n") if line.startswith("-"))
    words = (" ".join(FILLERS.sub(" ", content.lower().translate(MARKS)).split()) for content in contents)
    return [belief for belief in words if belief]


def equations(answer: str, numbers: Sequence[int], target: int) -> float:
    """1 if three right equations use each number once and lead to the target, else 0."""
    solution, left = tagged(answer, "Solution"), list(numbers)
    lines = [] if solution is None else solution.split("\n")
    if len(lines) != 3:
        return 0.0
    try:
        for line in lines:
            side, result = line.strip().split("=")
            sign = next(sign for sign in OPERATORS if sign in side)
            first, second = (int(part) for part in side.split(sign))
            if OPERATORS[sign](first, second) != int(result):
                return 0.0
            left.remove(first)
            left.remove(second)
            left.append(int(result))
    except (ValueError, StopIteration, ArithmeticError):
        return 0.0
    return float(left[0] == target)


def trip(answer: str, cities: str, durations: str) -> float:
    """1 if the plan visits the cities in their order for as many days, else 0; both are as in "A**B" and "3**5"."""
    plan = _stays(tagged(answer, "Plan") or "")
    wanted = [
        (city, int(days))
        for city, days in zip(filter(None, cities.split("**")), filter(None, durations.split("**")), strict=True)
    ]
    return float(plan[: len(wanted)] == wanted)


def _stays(text: str) -> list[tuple[str, int]]:
    """Cities with days of stay, from the days of the flights between them."""
    spans, flights, total = list[str](), list[tuple[str, str, str]](), None
    for line in text.split("\n"):
        if days := re.search(r"European cities for (\d+) days", line):
            total = int(days[1])
        if span := re.search(r"\d+-\d+", line):
            spans.append(span[0])
            if int(span[0].split("-")[1]) == total:
                break
        if flight := re.search(r".*Day (\d+).*from (\w+) to (\w+)", line):
            flights.append((flight[1], flight[2], flight[3]))
    if not spans or not flights:
        return []
    cities = [flights[0][1], *(city for _, _, city in flights)]
    days = [1, *(int(day) for day, _, _ in flights), int(spans[-1].split("-")[1])]
    return [(city, end - start + 1) for city, (start, end) in zip(cities, pairwise(days), strict=True)]


def table_f1(answer: str, reference: str) -> float:
    """F1 of the rows of a table in a block of tsv: rows of each side that the other has, words joined."""
    block = re.search(r"```tsv([\s\S]*)```", answer)
    text = block[1] if block else answer.split("```tsv")[1] if "```tsv" in answer else answer
    try:
        found, wanted = _table(text.strip()), _table(reference)
    except (ValueError, IndexError, csv.Error):
        return 0.0
    if not found or not wanted or len(found[0]) != len(wanted[0]):
        return 0.0
    precision = sum(row in wanted for row in found) / len(found)
    recall = sum(row in found for row in wanted) / len(wanted)
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def _table(text: str) -> list[tuple[str, ...]]:
    """Rows without the header, incomplete ones as not available, but for the last. Raises ValueError or IndexError."""
    header, *rows = csv.reader(text.strip().split("\n"), delimiter="\t")
    if len(set(header)) < len(header):
        raise ValueError("the header names a column twice")
    if len(rows[-1]) != len(header):
        rows.pop()
    whole = (row if len(row) == len(header) else ["N/A"] * len(header) for row in rows)
    return [tuple("".join(english(cell)) for cell in row) for row in whole]
