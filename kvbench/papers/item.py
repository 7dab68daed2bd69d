"""One table or figure of a paper as data: its runs, and the paper's layout of the numbers.

The files are `conf/paper/PAPER/ITEM.yaml`. Names are printed as a paper prints them: names of
`results/papers/labels.yaml`, then the `labels` of the item.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Literal

import yaml

from kvbench.config.compose import load_entry
from kvbench.config.settings import build
from kvbench.report.tables.summary import FRACTION, Unit, budget_key
from kvbench.support import paths
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


@dataclass(frozen=True)
class Layout:
    """The paper's layout of the numbers. rows, cols: keys of `KEYS` or arms. All other keys are averaged over.

    average: plain, or the name of an average of LongBench: the last column, the mean of the line. If tasks are no key,
    every place is that average. against: `full` prints differences to the full cache (CAOTE's perplexities).
    x: the key on the horizontal axis of a figure. panels: keys with one panel per value; the other row keys have one
    line per value. y: what a picture of times and bytes shows. wins: two policies that are compared; a number is then
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
    y: str = "both"
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
    each of the other. runs: what else runs. kind: text is rendered as published, costs come from formulas, times from
    runs that measure time. member: of another kind, the member of that group which measures the item. mean_over: what
    our means are over, where questions share contexts. arms: the words of a paper's protocol that stand for each value
    of an arm. quantity: of the measured numbers, the one that the paper prints. sources: where the paper or its code
    says a setting. labels: names as this item prints them, before its paper's. device: the planned one.
    """

    name: str
    title: str
    published: tuple[str, ...] = ()
    kind: str = "table"
    settings: Settings = ()
    prompts: tuple[Settings, ...] = ()
    methods: tuple[Settings, ...] = ()
    runs: tuple[Settings, ...] = ()
    layout: Layout = field(default_factory=Layout)
    mean_over: Unit = "questions"
    arms: dict[str, dict[str, str]] = field(default_factory=dict)
    only: dict[str, tuple[str, ...]] = field(default_factory=dict)
    picture: Picture | None = None
    member: str | None = None
    by: tuple[str, ...] = ()
    quantity: str | None = None
    device: str = "a100-80gb"
    sources: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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


def names() -> list[str]:
    """Return all items, by paper."""
    return list(items("paper"))


def item_of(name: str) -> Item:
    """Return the item of a name. Raises UserError, naming the nearest, for an unknown name."""
    if name not in items("paper"):
        raise UserError(f"unknown paper item {name}: {closest(name, names())}")
    return build("paper", load_entry("paper", name))


LABEL_HEADS = {
    "policy": "method",
    "context_length": "tokens",
    "evict_after": "eviction",
    "decode_every": "buffer",
    "chat": "template",
    "prompt": "repeat prompt",
}
"""Heads of label columns whose key is no word of the papers."""


@cache
def _printed_names() -> dict[str, dict[str, str]]:
    return yaml.safe_load((paths.papers() / "labels.yaml").read_text("utf-8"))


def names_of(item: Item) -> Mapping[str, str]:
    """Return the printed name of every value that has one."""
    return {**_printed_names().get(item.paper, {}), **item.labels}


def printed_name(names: Mapping[str, str], key: str, value: str) -> str:
    """Return the value of a key of a layout; a fraction of the KV pairs in percent."""
    if key == "context_length" or value in names:
        return value if key == "context_length" else names[value]
    if key == "budget" and value:
        kind, number, _ = budget_key(value)
        return f"{100 * number:g} %" if kind == FRACTION else value
    return value.rpartition("/")[2] if key == "task" else value


def method(names: Mapping[str, str], policy: str, score: str, hosts: Collection[str] = ()) -> str:
    """Return a policy and its score: "H2O", "H2O + CAOTE"; "+ CAOTE" if the policy without that score is one of
    `hosts`.
    """
    host = printed_name(names, "policy", policy)
    if f"{policy} {score}" in names:
        return names[f"{policy} {score}"]
    if is_host(policy, score):
        return host
    return (
        f"+ {printed_name(names, 'score', score)}"
        if policy in hosts
        else f"{host} + {printed_name(names, 'score', score)}"
    )


def is_host(policy: str, score: str) -> bool:
    """Return whether a score is the policy's own, which papers do not name."""
    return score in ("", "attn") or policy == score or policy.startswith(f"{score}_")


def label_keys(keys: Sequence[str]) -> list[str]:
    """Keys with a label of their own: a score is part of its policy's."""
    return [key for key in keys if key != "score" or "policy" not in keys]


def line_labels(
    names: Mapping[str, str], keys: Sequence[str], line: Sequence[str], hosts: Collection[str] = ()
) -> list[str]:
    """Return one label for each of `label_keys`; the full cache has no budget."""
    values = dict(zip(keys, line, strict=True))
    labels = []
    for key in label_keys(keys):
        if key == "policy" and "score" in values:
            labels.append(method(names, values["policy"], values["score"], hosts))
        else:
            is_all = key == "budget" and values.get("policy") == "full"
            labels.append("" if is_all else printed_name(names, key, values[key]))
    return labels
