"""The cells of an item with the settings of a command line, each with its place in the layout; and smoke runs.

A smoke run is a small version of an item for the embedded model on a laptop: its settings with shorter contexts,
smaller budgets and fewer of each. It shows that the page can be made. Sizes replace the item's by rank, so that a table
keeps several columns, and tables that share cells at full size also share them in a smoke run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvbench.config.cells import Results, check_unaltered
from kvbench.config.compose import with_members
from kvbench.config.overrides import Override, parse
from kvbench.config.sweep import cells_of, verifies
from kvbench.papers.item import Item
from kvbench.papers.numbers import At, Placed, kind_of
from kvbench.report.tables.summary import Summary
from kvbench.run.plan import Cell
from kvbench.support.errors import MissingFile, UserError
from kvbench.tasks.files import NoData

FREE = ("data.root", "data.verify", "results.dir", "results.kept", "results.lease_seconds", "seed")
"""Settings of places and seeds, which do not change what is measured."""
PLACES = ("model.device", "model.device_map", "model.cuda_graph", "model.products", "model.threads", "model.max_batch")
"""Settings that change where and how fast a model runs, but not what it computes."""
SMALL = (
    *("model=reference", "task.samples=1", "task.max_new_tokens=8", "task.buffer=60", "task.repeats=2"),
    "results.dir=results/smoke",
)
"""The settings of every smoke run. `task.buffer`: the tokens that a needle's text leaves for question and answer."""
SIZES = {
    "task.max_prompt_tokens": ("320",),
    "task.batch": ("1", "2"),
    "task.new_tokens": ("8",),
    "budget": ("48", "64", "96", "128"),
    "score.chunk": ("32", "64", "128", "256"),
}
"""Numbers by rank: an item's smallest becomes the first; surplus values of an item are dropped."""
LENGTHS = {
    "needle": ("400", "512", "640"),
    "pg19": ("256",),
    "ruler": ("384", "512", "640"),
    "ruler/cwe": ("1024",),
    "ruler/vt": ("1024",),
}
"""Context lengths by rank per task or benchmark: the shortest that its prompts can have."""
TIMED_LENGTHS = ("128", "256", "512")
"""Context lengths by rank of tasks that time a prompt of any length."""
SHORTENING = {
    "booksum": ("task.context_length=256",),
    "ruler_published": ("task.truncation=left", "task.max_prompt_tokens=320"),
    "scbench": ("task.truncation=left", "task.max_prompt_tokens=320"),
}
"""Settings that shorten the prompts of benchmarks whose items set no length."""
LIMITS = {"policy.window": 32, "policy.recent": 32, "policy.sink": 4}
"""The maximum of protected tokens, and of rows that the score reads."""
ENDS = {"task.depth": 3, "budget": 3}
"""Lists of fractions are thinned to this many values, including the first and the last."""
PROMPTS = ("task=ruler/niah_single_1", "task.context_length=384", "task.max_prompt_tokens=null")
"""The stand-in for prompts whose data is missing: a needle in noise, which needs no data."""
TEXTS = ("task=pg19", "task.context_length=192", "schedule.prefill_block=null", "schedule.decode_every=1")
"""The stand-in for texts whose data is missing: books."""


@dataclass(frozen=True)
class Entry:
    """One cell, its place in the layout, and its differences from the paper's protocol, as text."""

    cell: Cell
    at: At
    differs: tuple[str, ...]

    def placed(self, summaries: Mapping[str, Summary]) -> Placed:
        """Return the entry with its summary."""
        return Placed(
            at=self.at,
            task=self.cell.task.name,
            prompts=repr(self.cell.task),
            model=self.cell.model.label,
            samples=self.cell.task.num_answers,
            reference="budget" not in self.cell.policy.accepts,
            summary=summaries.get(self.cell.id),
            differs=self.differs,
        )


@dataclass
class ItemCells:
    """The cells of an item, the folder of their rows, and settings of the command line that none of them has.

    missing: the error of each task that lacks its data, and of each other file that a run needs. replaced: the hints
    of an item all of whose tasks are replaced by another. commands: the settings of each run for `kvbench run`.
    """

    entries: list[Entry] = field(default_factory=list)
    results: Results | None = None
    unused: set[str] = field(default_factory=set)
    missing: dict[str, MissingFile] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    commands: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def with_data(self) -> list[Entry]:
        """The entries that have data."""
        return [entry for entry in self.entries if entry.cell.task.name not in self.missing]

    def hints(self) -> list[str]:
        """Return what is missing and the command that fetches it, once for all tasks of a benchmark."""
        families: dict[str, list[str]] = {}
        for name, error in self.missing.items():
            families.setdefault(error.name.partition("/")[0] if isinstance(error, NoData) else name, []).append(name)
        return [f"no data for {', '.join(names)}: {self.missing[names[0]]}" for names in families.values()]

    def add(self, item: Item, cells: Iterable[Cell], differs: tuple[str, ...]) -> None:
        """Place cells in the item's layout, each once."""
        placed = {repr(entry.cell) for entry in self.entries}
        for cell in cells:
            if repr(cell) in placed:  # the paper has two models, the command line names one
                continue
            if cell.task.name not in self.missing:
                try:
                    cell.task.identity()
                except NoData as error:
                    self.missing[cell.task.name] = error
            self.entries.append(Entry(cell, _place(item, cell), differs))


@dataclass(frozen=True)
class Merged:
    """All settings of an item, those that are kept, and words of the command line that replace the others."""

    settings: Sequence[Override]
    kept: Sequence[Override]
    replacing: Sequence[Override]

    @property
    def overrides(self) -> list[Override]:
        """The settings to compose."""
        return [*self.kept, *self.replacing]

    def without(self, unused: set[str]) -> "Merged":
        """Return the same without replacing settings that no cell has."""
        return replace(self, replacing=[override for override in self.replacing if override.key not in unused])

    def differences(self) -> Iterator[str]:
        """Yield the changes that the replacing settings make to the item's, as text.

        A subset of the item's values is no difference; nor is the folder of a model, if the last part of its path is
        the same.
        """
        before = {override.key: override for override in self.settings}
        remaining_keys = {override.key for override in self.overrides}
        for override in self.replacing:
            if override.key in (*FREE, *PLACES):
                continue
            dropped = [
                old.canonical for old in self.settings if old.key not in remaining_keys and old.root == override.key
            ]
            old = before.get(override.key)
            if old is None:
                yield f"{override.canonical} (not stated for the paper's runs)"
            elif _values(override) - _values(old):
                yield f"{override.canonical} instead of {' '.join([old.canonical, *dropped])}"
            else:
                yield from (f"without {text}" for text in dropped)


def merged(
    settings: Sequence[str], words: Sequence[Override], small: bool, usual_lengths: Sequence[str] = ()
) -> Merged:
    """Return an item's settings with settings of a command line in their place.

    Overriding a group (`model=reference`) drops all of the item's settings of that group. small: a smoke run, with
    `usual_lengths` as of `smoke`.
    """
    overrides = parse(settings)
    replacing = [*smoke(overrides, words, usual_lengths), *words] if small else list(words)
    return Merged(overrides, unless_named(overrides, replacing), replacing)


def unless_named(defaults: Sequence[Override], overrides: Sequence[Override]) -> list[Override]:
    """Return the defaults without settings that the overrides set, and without settings of a group that they name."""
    named = {override.key for override in overrides}
    return [default for default in defaults if default.key not in named and default.root not in named]


def cells_of_item(item: Item, words: Sequence[Override], small: bool = False) -> ItemCells:
    """Return the cells of an item's runs; in a smoke run, other tasks replace the item's if none of them has data.

    Raises UserError for values that are not allowed.
    """
    cells = _cells_of_runs(item, words, small)
    if not small or cells.with_data or any(override.key == "task" for override in words):
        return cells
    replacing = parse(TEXTS if all(entry.cell.task.scores_text for entry in cells.entries) else PROMPTS)
    others = _cells_of_runs(item, [*words, *replacing], small)
    if not others.with_data:
        return cells
    others.unused -= {override.key for override in replacing}
    others.replaced = tuple(hint for hint in cells.hints() if hint not in others.hints())
    return others


def _cells_of_runs(item: Item, words: Sequence[Override], small: bool) -> ItemCells:
    cells = ItemCells()
    unused = {override.key for override in words}
    composed: set[tuple[str, ...]] = set()
    for run in item.all_runs:
        usual_lengths = TIMED_LENGTHS if item.kind == "times" else ()
        settings = merged(("protocol=paper", "reference=none", *run), words, small, usual_lengths)
        key = tuple(override.canonical for override in settings.overrides)
        if key in composed:
            continue
        composed.add(key)
        unused_here: set[str] = set()
        try:
            results, run_cells = cells_of(
                [override for override in settings.overrides if not item.measures(override.key)], unused_here
            )
        except MissingFile as error:  # a table of heads
            cells.missing[str(error).partition(":")[0]] = error
            continue
        unused &= unused_here
        if cells.results is not None and results.dir != cells.results.dir:
            raise UserError(
                f"results.dir lists several folders: {cells.results.dir}, {results.dir}; use one folder for an item"
            )
        cells.results = results
        used = settings.without(unused_here)
        cells.commands.append(tuple(override.canonical for override in used.overrides))
        cells.add(item, run_cells, tuple(used.differences()))
        check_unaltered((entry.cell for entry in cells.with_data), verifies(settings.overrides), lambda text: None)
    cells.unused = {key for key in unused if not item.measures(key)}
    return cells


def is_smoke(entries: Iterable[Entry]) -> bool:
    """Return whether the numbers cannot be compared with the paper's: embedded or random model, other number of
    samples.
    """
    return any(
        not entry.cell.model.is_real or any(text.startswith("task.samples=") for text in entry.differs)
        for entry in entries
    )


def _place(item: Item, cell: Cell) -> At:
    """Return the values of the layout's keys, as the paper's CSV file has them."""
    values = {
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
        values |= {
            "layout": cell.policy.layout,
            "evict_after": cell.schedule.evict_after,
            "decode_every": str(cell.schedule.decode_every or ""),
            "heads": "uniform" if is_uniform else "non-uniform",  # in KVzip's words
            "chunk": str(getattr(cell.score, "chunk", "")),
            "prompt": "" if prompt is None else str(prompt).strip() or "none",
        }
    return tuple(values.get(key, "") for key in item.keys)


def _values(override: Override) -> set[str]:
    """Return the values of a setting without quotes; of a path its last part."""
    if override.key == "model.path":
        return {value.text.rstrip("/").rpartition("/")[2] for value in override.values}
    return {value.text.strip("\"'") for value in override.values}


def smoke(settings: Sequence[Override], words: Sequence[Override], usual_lengths: Sequence[str] = ()) -> list[Override]:
    """Return the settings that make an item small, except those that `words` of the command line set.

    usual_lengths: context lengths by rank where no task has its own.
    """
    named = {override.key for override in words}
    chosen = [override for override in (words if "task" in named else settings) if override.key == "task"]
    tasks = [value.text for override in with_members(chosen) for value in override.values]
    lengths = [LENGTHS.get(task) or LENGTHS.get(task.partition("/")[0]) for task in tasks]
    shortest = min((sizes for sizes in lengths if sizes is not None), key=len, default=usual_lengths)
    small = [*SMALL, *(text for task in tasks for text in SHORTENING.get(task.partition("/")[0], ()))]
    small += [text for override in settings if (text := _smaller(override, shortest))]
    return [override for override in parse(small) if override.key not in named]


def _smaller(override: Override, lengths: Sequence[str]) -> str | None:
    """Return the setting with smaller values; None if it stays as it is."""
    key, values = override.key, [value.text for value in override.values]
    counts = all(value.isdecimal() for value in values)
    if key == "task.context_length" and lengths:
        smaller = list(lengths[: len(values)])
    elif key in SIZES and counts:
        ranks = zip(sorted(values, key=int), SIZES[key], strict=False)
        smaller = [min(pair, key=int) for pair in ranks]
    elif key in ENDS:
        number = min(ENDS[key], len(values))
        places = (round(place * (len(values) - 1) / max(1, number - 1)) for place in range(number))
        smaller = [values[place] for place in places]
    elif key in LIMITS and counts:
        smaller = [str(min(int(value), LIMITS[key])) for value in values]
    else:
        return None
    return f"{key}={','.join(dict.fromkeys(smaller))}"
