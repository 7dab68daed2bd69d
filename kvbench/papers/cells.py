"""The cells of an item's runs, each with its place in the layout, under the settings of a command line.

Settings of the command line replace the item's. In a smoke run the settings of `SMOKE` and of `Item.smoke` do too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvbench.config.overrides import Override, parse
from kvbench.papers.item import At, Item
from kvbench.papers.numbers import Placed
from kvbench.papers.published import kind_of
from kvbench.run.cell import Cell
from kvbench.run.settings import Results
from kvbench.support.errors import MissingFile
from kvbench.tasks.files import NoData
from kvbench.work.planned import cells_of, check_unaltered, lacking_data, verifies

ALWAYS = ("protocol=paper", "reference=none")
"""What every run says: policies are as their files have them, and the full cache runs where an item names it."""
SMOKE = (
    *("model=reference", "task.samples=1", "task.max_new_tokens=8", "budget=400,500"),
    "results.dir=results/smoke",
)
"""The settings of every smoke run: one sample of the embedded model, and budgets that hold all protected tokens."""
FREE = (
    *("data.root", "data.verify", "results.dir", "results.kept", "results.lease_seconds", "seed", "model.device"),
    *("model.device_map", "model.cuda_graph", "model.products", "model.threads", "model.max_batch"),
)
"""Settings that say where and how fast a model runs and where rows go, but change nothing that is measured."""


@dataclass
class ItemCells:
    """The cells of an item, where their rows go, and settings of the command line that none of them has.

    missing: the error of each task that lacks its data, and of each other file that a run needs. commands: the settings
    of each run for `kvbench run`.
    """

    unused: set[str]
    entries: list[Placed] = field(default_factory=list)
    results: Results | None = None
    missing: dict[str, MissingFile] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def with_data(self) -> list[Placed]:
        """The entries that have data."""
        return [entry for entry in self.entries if entry.cell.task.name not in self.missing]

    def hints(self) -> list[str]:
        """Return what is missing and the command that fetches it, once for all tasks of a benchmark."""
        families: dict[str, list[str]] = {}
        for name, error in self.missing.items():
            families.setdefault(error.name.partition("/")[0] if isinstance(error, NoData) else name, []).append(name)
        return [f"no data for {', '.join(names)}: {self.missing[names[0]]}" for names in families.values()]


def cells_of_item(item: Item, words: Sequence[Override], small: bool = False) -> ItemCells:
    """Return the cells of an item's runs, each once; `small`: of a smoke run.

    Raises UserError for values that are not allowed, MissingFile for data files that differ from the lock.
    """
    of_item = ItemCells({override.key for override in words if override.root != item.own_settings})
    replacing = [*smoke(item, words), *words] if small else list(words)
    composed, placed, files = set[tuple[str, ...]](), set[str](), dict[str, MissingFile]()
    for settings in (parse((*ALWAYS, *run)) for run in item.all_runs):
        kept, unused = unless_named(settings, replacing), set[str]()
        if (canonical := _canonical([*kept, *replacing])) in composed:
            continue
        composed.add(canonical)
        try:
            of_cells = [override for override in (*kept, *replacing) if override.root != item.own_settings]
            of_item.results, cells = cells_of(of_cells, unused)
        except MissingFile as error:  # a table of heads
            files[str(error).partition(":")[0]] = error
            continue
        of_item.unused &= unused
        used = [override for override in replacing if override.key not in unused]
        of_item.commands.append(_canonical([*kept, *used]))
        differs = tuple(_differences(settings, kept, used))
        for cell in cells:  # a paper has two models, the command line names one: two runs have the same cells
            if repr(cell) not in placed:
                placed.add(repr(cell))
                of_item.entries.append(Placed(cell, _place(item, cell), differs))
    of_item.missing = {**lacking_data(entry.cell.task for entry in of_item.entries), **files}
    check_unaltered((entry.cell for entry in of_item.with_data), verifies(words), lambda text: None)
    return of_item


def smoke(item: Item, words: Sequence[Override]) -> list[Override]:
    """Return the settings that make an item small, except those that `words` of the command line set."""
    named = {override.key for override in words}
    return [
        *(override for override in parse(SMOKE) if override.key not in named),
        *unless_named(parse(item.smoke), words),
    ]


def unless_named(defaults: Sequence[Override], overrides: Sequence[Override]) -> list[Override]:
    """Return the defaults without settings that the overrides set, and without settings of a group that they name."""
    named = {override.key for override in overrides}
    return [default for default in defaults if default.key not in named and default.root not in named]


def _canonical(overrides: Iterable[Override]) -> tuple[str, ...]:
    return tuple(override.canonical for override in overrides)


def _differences(
    settings: Sequence[Override], kept: Sequence[Override], replacing: Sequence[Override]
) -> Iterator[str]:
    """Yield the changes that the replacing settings make to the item's, as text.

    A subset of the item's values is no difference; nor is the folder of a model, if the last part of its path is the
    same.
    """
    before = {override.key: override for override in settings}
    remaining = {override.key for override in (*kept, *replacing)}
    for override in (each for each in replacing if each.key not in FREE):
        dropped = [old.canonical for old in settings if old.key not in remaining and old.root == override.key]
        old = before.get(override.key)
        if old is None:
            yield f"{override.canonical} (not stated for the paper's runs)"
        elif _values(override) - _values(old):
            yield f"{override.canonical} instead of {' '.join([old.canonical, *dropped])}"
        else:
            yield from (f"without {text}" for text in dropped)


def _values(override: Override) -> set[str]:
    """Return the values of a setting without quotes; of a path its last part."""
    if override.key == "model.path":
        return {value.text.rstrip("/").rpartition("/")[2] for value in override.values}
    return {value.text.strip("\"'") for value in override.values}


def is_smoke(entries: Iterable[Placed]) -> bool:
    """Return whether the numbers cannot be compared with the paper's: embedded or random model, other number of
    samples.
    """
    return any(
        not entry.cell.model.is_real or any(text.startswith("task.samples=") for text in entry.differs)
        for entry in entries
    )


def _place(item: Item, cell: Cell) -> At:
    """Return the values of the layout's keys, as the paper's CSV file has them."""
    values: Mapping[str, str] = {
        "model": cell.model.label.rpartition("/")[2],
        "task": cell.task.name,
        "context_length": "" if cell.task.context_length is None else str(cell.task.context_length),
        "policy": cell.policy.name,
        "score": cell.score.name if "score" in cell.policy.accepts else "",
        "budget": str(cell.budget),
        "kind": kind_of(cell.task.name),
        "chat": cell.model.chat,
    }
    if "budget" in cell.policy.accepts:  # these do not change the full cache
        prompt = getattr(cell.score, "repeat_prompt", None)
        is_uniform = cell.policy.heads.kind == "uniform" and cell.policy.layers.kind != "global"
        values = {
            **values,
            "layout": cell.policy.layout,
            "evict_after": cell.schedule.evict_after,
            "decode_every": str(cell.schedule.decode_every or ""),
            "heads": "uniform" if is_uniform else "non-uniform",  # in KVzip's words
            "chunk": str(getattr(cell.score, "chunk", "")),
            "prompt": "" if prompt is None else str(prompt).strip() or "none",
        }
    return tuple(values.get(key, "") for key in item.keys)
