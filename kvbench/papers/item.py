"""One table or figure of a paper as data: its runs, and the paper's layout of the numbers.

The files are `conf/paper/PAPER/ITEM.yaml`, of kvbench and of its extras.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import ClassVar, Literal, get_args

from kvbench.config.entries import load_entry
from kvbench.config.settings import build
from kvbench.report.tables.summary import Unit
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.plugins import items
from kvbench.support.text import closest

Key = Literal["model", "task", "context_length", "policy", "score", "budget"]
Arm = Literal["layout", "evict_after", "decode_every", "chat", "heads", "chunk", "prompt", "kind", "layer", "part"]
LayoutKey = Key | Arm | Literal["protocol"]
KEYS: tuple[Key, ...] = get_args(Key)
"""What identifies a number of a paper; columns of its CSV file."""
ARMS: tuple[Arm, ...] = get_args(Arm)
"""What a paper's protocol says in words and a cell by a setting; `kind`: of the task, `layer`: of the model, `part`:
what a column of a table of words is about.
"""
Settings = tuple[str, ...]
"""Settings in the grammar of `kvbench run`, lists included; all of their combinations are cells."""
At = tuple[str, ...]
"""The values of a layout's keys; an average has `AVERAGE` as its first column value, and no others."""
AVERAGE = "average"
"""What stands over the last column of a line."""
WORDS = ("text", "complexity")
"""Units of values that are not numbers."""


@dataclass(frozen=True)
class Published:
    """One printed number."""

    at: At
    value: str
    unit: str
    protocol: str
    flag: str
    task: str

    @property
    def is_number(self) -> bool:
        """Whether the value is a number, and no word or gap."""
        return self.unit not in WORDS and self.value.removeprefix("-").replace(".", "", 1).isdecimal()


@dataclass(frozen=True)
class Layout:
    """The paper's layout of the numbers. rows, cols: the keys of lines and columns. All others are averaged over.

    average: plain, or the name of an average of LongBench: the last column, the mean of the line. If tasks are no key,
    every place is that average. against: `full` prints differences to the full cache (CAOTE's perplexities).
    panels: keys with one panel of a figure per value; the other row keys have one line per value, over budgets. unit:
    of our numbers where the paper prints none. best: which of the numbers of several methods is marked as the best.
    words: the table is one of words, as published; nothing runs. ours: what our numbers are. caption: of the tables, if
    not what our numbers are and their unit.
    """

    rows: tuple[LayoutKey, ...] = ("policy", "score")
    cols: tuple[LayoutKey, ...] = ("budget",)
    average: Literal["plain", "official", "lava", "caote"] | None = None
    against: Literal["full"] | None = None
    panels: tuple[LayoutKey, ...] = ()
    unit: str = ""
    best: Literal["highest", "lowest", "none"] = "highest"
    words: bool = False
    ours: str = "mean"
    caption: str = ""


@dataclass(frozen=True)
class Item:
    """A table of means, or of what the paper printed. Items that are measured or computed otherwise are subclasses.

    published: the tables of the paper's CSV file; none if it prints no number. settings: those that all runs share.
    prompts, methods: what is read and what evicts it; each of the one runs with each of the other. runs: what else
    runs. smoke: what a smoke run reads, and its sizes. mean_over: what our means are over, where questions share
    contexts. arms: the words of a paper's protocol that stand for each value of an arm. only: of each key, the values
    that the item shows. picture: curves, or a plot of rows; plot: its settings, as of `kvbench report plot`. sources:
    where the paper or its code says a setting. labels: names as this item prints them, before its paper's. remarks:
    notes below its tables.
    """

    name: str
    title: str
    published: tuple[str, ...] = ()
    settings: Settings = ()
    prompts: tuple[Settings, ...] = ()
    methods: tuple[Settings, ...] = ()
    runs: tuple[Settings, ...] = ()
    smoke: Settings = ("task=ruler/niah_single_1", "task.context_length=768,1024")
    layout: Layout = field(default_factory=Layout)
    mean_over: Unit = "questions"
    arms: dict[Arm, dict[str, str]] = field(default_factory=dict)
    only: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    picture: str | None = None
    plot: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    made_by: ClassVar[str] = "kvbench.papers.sweep:ItemSweep"
    """What makes its page, a `kvbench.papers.sweep.PrintedPage`, as module:class."""
    own_settings: ClassVar[str] = ""
    """The first part of settings that say how it is measured, and are no settings of cells."""

    @property
    def all_runs(self) -> list[Settings]:
        """The settings of every run; none if nothing is measured."""
        prompts, methods = self.prompts or ((),), self.methods or ((),)
        crossed = product(prompts, methods) if self.prompts or self.methods or not self.runs else ()
        runs = [*(prompt + method for prompt, method in crossed), *self.runs]
        return [self.settings + run for run in runs if self.settings or run]

    @property
    def paper(self) -> str:
        """The paper's short name, which its CSV file has."""
        return self.name.partition("/")[0]

    @property
    def has_average(self) -> bool:
        """Whether lines end with an average."""
        return self.layout.average == "plain" or (self.layout.average is not None and "task" in self.keys)

    @property
    def keys(self) -> tuple[LayoutKey, ...]:
        """The keys that identify a place in the layout."""
        return (*self.layout.rows, *self.layout.cols)

    def line(self, at: At) -> At:
        """Return the values of the row keys."""
        return at[: len(self.layout.rows)]

    def column(self, at: At) -> At:
        """Return the values of the column keys."""
        return at[len(self.layout.rows) :]

    def average(self, line: At) -> At:
        """Return the place of the average of a line."""
        return (*line, AVERAGE, *[""] * (len(self.layout.cols) - 1))

    def is_average(self, at: At) -> bool:
        """Return whether the number at a place is the average of its line."""
        return self.column(at)[:1] == (AVERAGE,)

    def one_each(self, numbers: Sequence[Published]) -> list[Published]:
        """Return one number per place: the mean of several printed numbers that the layout does not distinguish."""
        merged = []
        for members in grouped(numbers, lambda number: number.at).values():
            first = members[0]
            if len(members) > 1 and all(number.unit not in WORDS and number.value for number in members):
                value = f"{fmean(float(number.value) for number in members):.2f}"
                first = replace(first, value=value, flag=f"mean of {len(members)} printed numbers")
            merged.append(first)
        return merged


def names() -> list[str]:
    """Return all items, by paper."""
    return list(items("paper"))


def item_of(name: str) -> Item:
    """Return the item of a name. Raises UserError, naming the nearest, for an unknown name."""
    if name not in items("paper"):
        raise UserError(f"unknown paper item {name}: {closest(name, names())}")
    return build("paper", load_entry("paper", name))
