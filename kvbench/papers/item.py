"""One table or figure of a paper as data: its runs, and the paper's layout of the numbers.

The files are `conf/paper/PAPER/ITEM.yaml`.
"""

from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from kvbench.config.compose import load_entry
from kvbench.config.settings import build
from kvbench.report.tables.summary import Unit
from kvbench.support.errors import UserError
from kvbench.support.named import member, named
from kvbench.support.plugins import items
from kvbench.support.text import closest

KEYS = ("model", "task", "context_length", "policy", "score", "budget")
"""What identifies a number of a paper; columns of its CSV file."""
ARMS = ("layout", "evict_after", "decode_every", "chat", "heads", "chunk", "prompt", "kind", "layer", "part")
"""What a paper's protocol says in words and a cell by a setting; `kind`: of the task, `layer`: of the model, `part`:
what a column of a table of words is about.
"""
KINDS = ("table", "text", "costs", "times")
"""Kinds of items; extras bring others that they measure, each named as the group of settings that measures it."""
Picture = Literal["curves", "perplexity", "needle", "tradeoff", "latency", "wins"]
Settings = tuple[str, ...]
"""Settings in the grammar of `kvbench run`, lists included; all of their combinations are cells."""
At = tuple[str, ...]
"""The values of a layout's keys; an average has `AVERAGE` as its first column value, and no others."""
AVERAGE = "average"
"""What stands over the last column of a line."""


@dataclass(frozen=True)
class Layout:
    """The paper's layout of the numbers. rows, cols: keys of `KEYS` or arms. All other keys are averaged over.

    average: plain, or the name of an average of LongBench: the last column, the mean of the line. If tasks are no key,
    every place is that average. against: `full` prints differences to the full cache (CAOTE's perplexities).
    x: the key on the horizontal axis of a figure. panels: keys with one panel per value; the other row keys have one
    line per value. wins: two policies that are compared; a number is then
    the number of tasks on which one of them has the higher mean. mean: a key over whose values there is a mean in
    addition. relative: a key; a number is then the relative difference between two of its values. unit: of our numbers
    where the paper prints none. best: which of the numbers of several methods is marked as the best.
    """

    rows: tuple[str, ...] = ("policy", "score")
    cols: tuple[str, ...] = ("budget",)
    average: Literal["plain", "official", "lava", "caote"] | None = None
    against: Literal["full"] | None = None
    x: str | None = None
    panels: tuple[str, ...] = ()
    wins: tuple[tuple[str, str], ...] = ()
    mean: str | None = None
    relative: str | None = None
    unit: str = ""
    best: Literal["highest", "lowest", "none"] = "highest"

    def __post_init__(self) -> None:
        allowed = (*KEYS, *ARMS, "protocol")
        if unknown := [key for key in (*self.rows, *self.cols, *self.panels) if key not in allowed]:
            raise UserError(f"layout names {', '.join(unknown)}: allowed: {', '.join(allowed)}")


@dataclass(frozen=True)
class Item:
    """`published`: the tables of the paper's CSV file; none if it prints no number.

    settings: those that all runs share. prompts, methods: what is read and what evicts it; each of the one runs with
    each of the other. runs: what else runs. smoke: what a smoke run reads, and its sizes. kind: text is rendered as
    published, costs come from formulas, times from runs that measure time. member: of another kind, the member of that
    group which measures the item. mean_over: what our means are over, where questions share contexts. arms: the words
    of a paper's protocol that stand for each value of an arm. quantity: of the measured numbers, the one that the paper
    prints. plot: settings of its picture, as of `kvbench report plot`. sources: where the paper or its code says a
    setting. labels: names as this item prints them, before its paper's. remarks: notes below its tables.
    """

    name: str
    title: str
    published: tuple[str, ...] = ()
    kind: str = "table"
    settings: Settings = ()
    prompts: tuple[Settings, ...] = ()
    methods: tuple[Settings, ...] = ()
    runs: tuple[Settings, ...] = ()
    smoke: Settings = ("task=ruler/niah_single_1", "task.context_length=768,1024")
    layout: Layout = field(default_factory=Layout)
    mean_over: Unit = "questions"
    arms: dict[str, dict[str, str]] = field(default_factory=dict)
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    picture: Picture | None = None
    plot: dict[str, str] = field(default_factory=dict)
    member: str | None = None
    by: tuple[str, ...] = ()
    quantity: str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS and member("item", self.kind) is None:
            raise UserError(f"paper item {self.name}: kind {self.kind}: {closest(self.kind, (*KINDS, *named('item')))}")
        if (self.member is None) != (self.kind in KINDS):
            raise UserError(f"paper item {self.name}: member: says what measures it, and needs a kind that is measured")
        if self.kind not in ("text", "costs") and not self.all_runs:
            raise UserError(f"paper item {self.name}: kind {self.kind} needs settings")
        if unknown := [arm for arm in self.arms if arm not in ARMS]:
            raise UserError(f"paper item {self.name} has arms {', '.join(unknown)}; allowed: {', '.join(ARMS)}")

    @property
    def all_runs(self) -> list[Settings]:
        """The settings of every run; none if nothing is measured."""
        prompts, methods = self.prompts or ((),), self.methods or ((),)
        crossed = product(prompts, methods) if self.prompts or self.methods or not self.runs else ()
        runs = [*(prompt + method for prompt, method in crossed), *self.runs]
        return [self.settings + run for run in runs if self.settings or run]

    def measures(self, key: str) -> bool:
        """Return whether a setting is one of what measures the item."""
        return self.member is not None and key.startswith(f"{self.kind}.")

    @property
    def is_drawn(self) -> bool:
        """Whether it is a figure, or has one."""
        return self.picture is not None or self.member is not None

    @property
    def paper(self) -> str:
        """The paper's short name, which its CSV file has."""
        return self.name.partition("/")[0]

    @property
    def has_average(self) -> bool:
        """Whether lines end with an average."""
        return self.layout.average == "plain" or (self.layout.average is not None and "task" in self.keys)

    @property
    def keys(self) -> tuple[str, ...]:
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


def names() -> list[str]:
    """Return all items, by paper."""
    return list(items("paper"))


def item_of(name: str) -> Item:
    """Return the item of a name. Raises UserError, naming the nearest, for an unknown name."""
    if name not in items("paper"):
        raise UserError(f"unknown paper item {name}: {closest(name, names())}")
    return build("paper", load_entry("paper", name))
