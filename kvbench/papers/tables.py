"""Tables in a paper's layout: the order of lines and columns, their labels in the paper's words, rules and ranks."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeVar

from kvbench.papers.item import ARMS, AVERAGE, At, Item
from kvbench.papers.labels import LABEL_HEADS, is_host, line_labels, names_of, printed_name
from kvbench.report.formats.table import Figure, Table, TableRow
from kvbench.report.tables.means import best_and_second
from kvbench.report.tables.summary import budget_key
from kvbench.support.grouped import grouped
from kvbench.tasks.longbench_averages import CATEGORIES

T = TypeVar("T")
LEVELS = 3
"""Lines that the head of a table has."""
FULL = "full"
EVERYTHING = "1.0"
"""The budget of the full cache, as rows and as the papers' files have it."""
KINDS = {f"longbench/{task}": kind for kind, tasks in CATEGORIES.items() for task in tasks}


def spread(item: Item, numbers: Mapping[At, T], free: Collection[str] = ARMS, alone: bool = False) -> dict[At, T]:
    """Return the numbers; a number of the full cache stands in every column that differs from its own in `free` keys
    alone.

    alone: only a number whose column has no other number.
    """
    columns = dict.fromkeys(item.column(at) for at in numbers if FULL not in at and not item.is_average(at))
    placed: dict[At, T] = {}
    for at, number in numbers.items():
        own = item.column(at)
        spreads = FULL in at and not item.is_average(at) and not (alone and own in columns)
        alike = [
            column
            for column in (columns if spreads else ())
            if all(key in free or a == b for key, a, b in zip(item.layout.cols, own, column, strict=True))
        ]
        placed |= {item.line(at) + column: number for column in alike or [own]}
    return placed


def ranked(item: Item, figures: Mapping[At, Figure], values: Mapping[At, float]) -> dict[At, Figure]:
    """Return the figures with the best and the second among figures that differ in policy and score alone, as papers
    mark them.

    values: by place, as they are written; none is best where one has no value. The full cache does not compete.
    """
    marked = dict(figures)
    if item.layout.best == "none" or item.layout.words:
        return marked
    shared = [i for i, key in enumerate(item.keys) if key not in ("policy", "score")]
    competing = grouped((at for at in figures if FULL not in at), lambda at: tuple(at[i] for i in shared))
    for members in competing.values():
        numbers = {at: values.get(at, math.nan) for at in members}
        if not any(map(math.isnan, numbers.values())):
            best, second = best_and_second(numbers, item.layout.best == "highest")
            marked |= {at: replace(marked[at], best=at in best, second=at in second) for at in members}
    return marked


class Tables:
    """Makes tables of an item with the same order of lines and columns."""

    def __init__(self, item: Item, order: Sequence[At]) -> None:
        self._item, self._names = item, names_of(item)
        self._rows, self._cols = item.layout.rows, item.layout.cols
        lines, columns = list(dict.fromkeys(map(item.line, order))), list(dict.fromkeys(map(item.column, order)))
        policy = self._rows.index("policy") if "policy" in self._rows else None
        groups = [i for i, key in enumerate(self._rows[:policy]) if key == "model" or (policy and key != "budget")]
        first = {i: list(dict.fromkeys(line[i] for line in lines)).index for i in groups}

        def line_rank(line: At) -> tuple[Any, ...]:
            """Each model, task, .. with its full cache first; budgets by size, as ours may differ from the paper's."""
            value = self._values(line).get("budget", "")
            return (*(first[i](line[i]) for i in groups), FULL not in line, (value != "", budget_key(value)))

        def column_rank(column: At) -> tuple[Any, ...]:
            """Averages last; numbers by size; names in the paper's order."""
            if column[:1] == (AVERAGE,):
                return (True,)
            ranks: list[Any] = [False, FULL not in column]
            for i, (key, value) in enumerate(zip(self._cols, column, strict=True)):
                if key == "budget":
                    ranks.append((not value, budget_key(value)))
                elif key == "context_length":
                    ranks.append(float(value or 0))
                else:
                    ranks.append([each[i] for each in columns].index(value))
            return tuple(ranks)

        self._lines, self._columns = sorted(lines, key=line_rank), sorted(columns, key=column_rank)

    def _values(self, line: At) -> dict[str, str]:
        return dict(zip(self._rows, line, strict=True))

    def table(
        self,
        title: str,
        caption: str,
        figures: Mapping[At, Figure],
        notes: Sequence[str] = (),
        marks: tuple[Mapping[At, str], Mapping[At, str]] = ({}, {}),
        words: str = "",
    ) -> Table | None:
        """Return the lines and columns that have a number; None if there are none. marks: of lines and of columns."""
        if not figures:
            return None
        if "budget" in self._cols and self._cols[0] != "task":  # no other line has the budget of the full cache
            figures = spread(self._item, figures, ("budget", *ARMS), alone=True)
        used_lines, used_columns = ({*map(part, figures)} for part in (self._item.line, self._item.column))
        lines = [line for line in self._lines if line in used_lines]
        columns = [column for column in self._columns if column in used_columns]
        labelled = [self._labels(line, lines) for line in lines]
        used_keys = [key for key in labelled[0] if any(labels[key] for labels in labelled)]
        texts = [[labels[key] for key in used_keys] for labels in labelled]
        heads, groups = self._heads(columns)
        for of_part, keys, place, marked in ((texts, lines, -1, marks[0]), (heads, columns, groups, marks[1])):
            for parts, key in zip(of_part, keys, strict=True):
                if mark := marked.get(key):
                    parts[place] += f" {mark}"
        return Table(
            title=title,
            caption=(caption,),
            words=words,
            competition="of the methods",
            seconds=True,
            labels=tuple(LABEL_HEADS.get(key, key) for key in used_keys),
            heads=tuple(map(tuple, heads)),
            lines=tuple(
                TableRow(
                    _without_repeats(labels, before),
                    tuple(figures.get(line + column, Figure()) for column in columns),
                    reference=FULL in line,
                )
                for line, labels, before in zip(lines, texts, [[], *texts], strict=False)
            ),
            notes=tuple(notes),
            align="l" * len(columns) if self._item.layout.words else "",
            groups=groups,
            rules=(0, *self._rules(lines, texts)),
        )

    def _labels(self, line: At, lines: Sequence[At]) -> dict[str, str]:
        """Return the labels of a line; "+ CAOTE" below the line of its policy alone."""
        values, others = self._values(line), map(self._values, lines)
        hosts = {
            other["policy"]
            for other in others
            if {"policy", "score"} <= other.keys() and is_host(other["policy"], other["score"])
            if all(other[key] == values[key] for key in self._rows if key not in ("policy", "score"))
        }
        if "policy" in self._cols and values.get("budget") == EVERYTHING:
            values["budget"] = ""
        return line_labels(self._names, self._rows, tuple(values.values()), hosts)

    def _heads(self, columns: Sequence[At]) -> tuple[list[list[str]], int]:
        """Return the head of each column, and how many of its levels stand over several columns."""
        tasks = [column[0] for column in columns if column != (AVERAGE,)] if self._cols == ("task",) else []
        is_grouped = len(tasks) > 2 and all(task in KINDS for task in tasks)
        heads = []
        for column in columns:
            values = dict(zip(self._cols, column, strict=True))
            levels = [self._head(key, value, values.get("policy")) for key, value in values.items()]
            if column[:1] == (AVERAGE,):
                levels = [AVERAGE]
            elif is_grouped:
                levels = [KINDS[column[0]], *levels]
            heads.append(levels + [""] * (LEVELS - len(levels)))
        return heads, max(len(self._cols) - 1, int(is_grouped), 0)

    def _head(self, key: str, value: str, policy: str | None) -> str:
        """Return the head of a column; below its policy a score is "+ CAOTE", and nothing if it is the policy's own."""
        if key == "score" and policy is not None:
            return "" if is_host(policy, value) else f"+ {printed_name(self._names, key, value)}"
        if key == "context_length" and value:
            return f"{value} tokens"
        return AVERAGE if key == "budget" and not value else printed_name(self._names, key, value)

    def _rules(self, lines: Sequence[At], texts: Sequence[Sequence[str]]) -> Iterator[int]:
        """Below the full cache, and between budgets, models and methods that are listed with several scores."""
        policy_of = [self._values(line).get("policy") for line in lines]
        several = {policy for policy, labels in zip(policy_of, texts, strict=True) if labels and labels[-1][:2] == "+ "}
        before = next((self._rows.index(key) for key in ("policy", "budget") if key in self._rows), 0)
        for i in range(1, len(lines)):
            is_new = lines[i][:before] != lines[i - 1][:before] and FULL not in lines[i]
            both = {*policy_of[i - 1 : i + 1]}
            if is_new or (len(both) > 1 and both & {*several, FULL}):
                yield i


def _without_repeats(labels: Sequence[str], before: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of a line without those that the line above has too; the last one always stands."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(labels[:-1], before[:-1], strict=False))))
    return (*[""] * same, *labels[same:])
