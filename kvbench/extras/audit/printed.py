"""The lines of a paper's file as printed means with their prompts, and pairs of lines that differ in one thing alone.

`results/papers/prompts.yaml` says how many prompts are behind the numbers of a table, and how it is known.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kvbench.extras.audit.pairs import OF_POLICIES, OF_SCORES, Pair
from kvbench.extras.audit.scores import kind_of_longbench, rows_of_longbench, scores_of
from kvbench.papers.item import WORDS
from kvbench.papers.labels import is_host
from kvbench.papers.published import Arms, arms_of, kind_of
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

KEYS = ("table", "model", "task", "context_length", "policy", "score", "budget")
"""What identifies a line; pairs share all of them but what they compare."""
SCALES = {"percent": 100.0, "rate": 1.0}
FULL = "full"
UNSURE = ("copy_of", "column_lost", "line_cut_short", "read_off_plot")
"""Flags of lines that carry no information of their own, or whose columns or digits are not certain."""
BENCHMARK = "the benchmark's rows"
Condition = Mapping[str, str | Sequence[str]]
"""Values of columns, with wildcards; a list is any of them."""


@dataclass(frozen=True)
class Prompts:
    """Prompts behind a printed number. n: prompts of a task, None where nobody says it; `supposed` stands in for it.

    scores: as in `kvbench.extras.audit.scores`. source: where n is from.
    """

    n: int | None
    scores: str
    source: str
    texts: int | None = None
    tasks: int = 1
    supposed: int | None = None


@dataclass(frozen=True)
class PrintedLine:
    """One printed number by the columns of its file. half: half a unit of the table's last digit, in its own unit."""

    columns: Mapping[str, str]
    half: float
    prompts: Prompts | None

    def __getitem__(self, column: str) -> str:
        return self.columns[column]

    @property
    def value(self) -> float:
        """The number, in its own unit."""
        return float(self["value"])

    @property
    def reads(self) -> str:
        """The name of its prompts: models and methods share them."""
        return "/".join(filter(None, (self["task"], self["context_length"])))

    def is_of(self, condition: Condition) -> bool:
        """Return whether every named column has one of the values."""
        return all(
            any(fnmatchcase(self[column], value) for value in ([values] if isinstance(values, str) else values))
            for column, values in condition.items()
        )


@dataclass(frozen=True)
class LinePair:
    """Two lines over the same prompts, and what their means say."""

    a: PrintedLine
    b: PrintedLine

    @property
    def printed(self) -> float:
        """b - a, in the printed unit."""
        return round(self.b.value - self.a.value, 9)

    def pair(self, suppose: bool = False) -> Pair | None:
        """Return both as means in 0..1; None if no n is known. suppose: take the supposed n for an unknown one."""
        prompts = self.b.prompts
        n = None if prompts is None else prompts.n or (prompts.supposed if suppose else None)
        if prompts is None or n is None:
            return None
        scale, scores = SCALES[self.b["unit"]], scores_of(prompts.scores)
        return Pair(
            a=self.a.value / scale,
            b=self.b.value / scale,
            n=n,
            half=self.b.half / scale,
            parts=scores.parts,
            factor=scores.factor,
            rho=OF_SCORES if self.a["policy"] == self.b["policy"] else OF_POLICIES,
            texts=prompts.texts,
            tasks=prompts.tasks,
            prompts=self.b.reads,
        )


def printed_lines(paper: str, folder: Path) -> list[PrintedLine]:
    """Return the numbers of a paper that are means of its own lines, in its order.

    Left out are averages over tasks, budgets or lengths (their parts are there), lines that copy others, words, and
    numbers whose column is not known. Raises FileNotFoundError without the paper's file.
    """
    with (folder / f"{paper}.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["unit"] not in WORDS and row["value"]]
    digits: dict[tuple[str, str], int] = {}
    for row in rows:
        place = row["table"], row["unit"]
        digits[place] = max(digits.get(place, 0), len(row["value"].partition(".")[2]))
    return [
        PrintedLine(
            {**row, "kind": kind_of(row["task"])},
            0.5 * 10.0 ** -digits[row["table"], row["unit"]],
            prompts_of(row, folder),
        )
        for row in rows
        if not row["flag"].startswith(UNSURE) and (not _is_average(row) or _macro(row, folder))
    ]


def _is_average(row: Mapping[str, str]) -> bool:
    return row["protocol"].startswith("average") or row["task"] == "longbench"


def _macro(row: Mapping[str, str], folder: Path) -> bool:
    """Return whether an average over tasks is all that the paper prints of a table."""
    prompts = prompts_of(row, folder)
    return prompts is not None and prompts.tasks > 1 and not row["protocol"].startswith("average of")


@cache
def _rules(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return yaml.safe_load((folder / "prompts.yaml").read_text("utf-8"))


def prompts_of(row: Mapping[str, str], folder: Path) -> Prompts | None:
    """Return the prompts behind a line; None where nothing is known of it, or scores have no bounds."""
    if row["unit"] not in SCALES:
        return None
    for rule in _rules(folder).get(row["paper"], ()):
        if row["table"] in rule["tables"] and fnmatchcase(row["task"], rule["task"]):
            others = {key: rule[key] for key in ("texts", "tasks", "supposed") if key in rule}
            return Prompts(rule["n"], rule["scores"], rule["from"], **others)
    kind = kind_of_longbench(row["task"]) if row["task"].startswith("longbench/") else None
    if kind is None:
        return None
    n, texts = rows_of_longbench(row["task"])
    return Prompts(n, kind, BENCHMARK, texts)


def line_pairs(lines: Iterable[PrintedLine], a: Condition, b: Condition) -> list[LinePair]:
    """Return every line of `b` with the line of `a` that equals it in all other keys.

    Protocols count where a or b name them, and where several lines could be the partner. Raises UserError if several
    still could.
    """
    lines = list(lines)
    free = {*a, *b} | ({"score"} if "policy" in {*a, *b} else set())

    def place(line: PrintedLine) -> tuple[str, ...]:
        return tuple(line[key] for key in KEYS if key not in free)

    sides = grouped((line for line in lines if line.is_of(a)), place)
    pairs = []
    for line in lines:
        if not line.is_of(b):
            continue
        partners = [other for other in sides.get(place(line), ()) if other is not line]
        if "policy" not in free or "score" not in b:
            partners = [other for other in partners if "score" in free or other["score"] == line["score"]]
        if len(partners) > 1:
            partners = [other for other in partners if other["protocol"] == line["protocol"]]
        if len(partners) > 1:
            raise UserError(f"{place(line)}: {len(partners)} lines of {dict(a)} could be its partner")
        pairs += [LinePair(other, line) for other in partners]
    return pairs


def swaps(lines: Sequence[PrintedLine]) -> list[LinePair]:
    """Return every score on a policy with that policy's own score: all else of both lines is the same."""
    hosts = {
        (*(line[key] for key in KEYS if key != "score"), line["protocol"]): line
        for line in lines
        if is_host(line["policy"], line["score"]) and line["policy"] != FULL
    }
    found = []
    for line in lines:
        host = hosts.get((*(line[key] for key in KEYS if key != "score"), line["protocol"]))
        if host is not None and host is not line:
            found.append(LinePair(host, line))
    return found


def against_own(lines: Sequence[PrintedLine], paper: str) -> list[LinePair]:
    """Return the paper's own policy, which has its name, with each other policy of the same place."""

    def place(line: PrintedLine) -> tuple[str, ...]:
        return tuple(line[key] for key in KEYS if key not in ("policy", "score"))

    own = {place(line): line for line in lines if line["policy"] == paper}
    others = (line for line in lines if line["policy"] not in (paper, FULL))
    return [LinePair(line, own[place(line)]) for line in others if place(line) in own]


def across(lines: Sequence[PrintedLine], arms: Arms) -> list[LinePair]:
    """Return the first value of an arm with each later one, where all else but the table is the same."""
    found = []
    for arm, words in arms.items():

        def rest(line: PrintedLine, arm: str = arm) -> tuple[str, ...]:
            others = (value for name, value in arms_of(line["protocol"], arms).items() if name != arm)
            return (*(line[key] for key in KEYS if key != "table"), *others)

        for members in grouped(lines, rest).values():
            sides = {arms_of(line["protocol"], arms)[arm]: line for line in members}
            ordered = [sides[value] for value in words if value in sides]
            found += [LinePair(ordered[0], line) for line in ordered[1:]]
    return found


def bests(lines: Sequence[PrintedLine]) -> list[LinePair]:
    """Return the best of each column with its runner-up, which may be as good; the full cache does not compete."""
    columns = grouped(
        (line for line in lines if line["policy"] != FULL),
        lambda line: (*(line[key] for key in KEYS if key not in ("policy", "score")), line["protocol"]),
    )
    ranked = (sorted(members, key=lambda line: -line.value) for members in columns.values())
    return [LinePair(best[1], best[0]) for best in ranked if len(best) > 1]
