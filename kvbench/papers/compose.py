"""From an item of a paper and the settings of a command line to cells, each with its place in the paper's layout."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvbench.config.cells import Results
from kvbench.config.compose import file_of
from kvbench.config.overrides import Override, parse
from kvbench.config.settings import build
from kvbench.config.sweep import cells_of
from kvbench.papers.item import Item
from kvbench.papers.measured import Placed
from kvbench.papers.published import kind_of
from kvbench.papers.smoke import smoke, stand_ins
from kvbench.probes.compose import unless_named
from kvbench.report.tables.summary import Summary
from kvbench.run.plan import Cell
from kvbench.support.errors import UserError
from kvbench.support.plugins import items
from kvbench.support.text import closest
from kvbench.tasks.files import FromFiles, NoData

FREE = ("data.root", "results.dir", "results.kept", "results.lease_seconds", "seed")
"""Settings that say where something lies, and not what is measured; with those of the model's place."""
PLACES = ("model.device", "model.device_map", "model.threads", "model.tile")
GROUP = "paper"


@dataclass(frozen=True)
class Entry:
    """One cell, its place in the layout, and how it differs from what the paper did, in words."""

    cell: Cell
    at: tuple[str, ...]
    differs: tuple[str, ...]

    def placed(self, found: Mapping[str, Summary]) -> Placed:
        """The entry with what was measured."""
        one = self.cell
        reference = "budget" not in one.policy.takes
        return Placed(
            at=self.at,
            task=one.task.name,
            prompts=repr(one.task),
            model=one.model.label,
            samples=one.task.samples,
            reference=reference,
            summary=found.get(one.id),
            differs=self.differs,
        )


@dataclass
class Composed:
    """Cells of an item, where their rows go, settings of the command line that none of them has, and those tasks whose
    data is not there with what fetches it. instead: why other tasks stand in the place of all of them.
    """

    entries: list[Entry] = field(default_factory=list)
    where: Results | None = None
    unused: set[str] = field(default_factory=set)
    lacking: dict[str, str] = field(default_factory=dict)
    instead: tuple[str, ...] = ()

    @property
    def able(self) -> list[Entry]:
        """Cells whose data is there."""
        return [entry for entry in self.entries if entry.cell.task.name not in self.lacking]


def names() -> list[str]:
    """All items, by paper."""
    return list(items(GROUP))


def item_of(name: str) -> Item:
    """The item of a name. Raises ValueError, naming the nearest, where there is none."""
    if name not in items(GROUP):
        raise UserError(f"unknown paper item {name}: {closest(name, names())}")
    return build(GROUP, file_of(GROUP, name))


def composed(item: Item, words: Sequence[Override], small: bool = False) -> Composed:
    """Compose the runs of an item, settings of the command line in the place of the item's own.

    Naming a part (`model=reference`) drops all of the item's settings of that part. `small`: what the command line does
    not say is what a smoke run says, see `kvbench.papers.smoke`; if no task has its data, others stand in for them.
    Raises ValueError for values that are not legal.
    """
    found = _composed(item, words, small)
    if not small or found.able or any(one.key == "task" for one in words):
        return found
    instead = stand_ins(entry.cell for entry in found.entries)
    other = _composed(item, [*words, *instead], small)
    other.unused -= {one.key for one in instead}
    if other.able:
        other.instead = tuple(dict.fromkeys(found.lacking.values()))
    return other if other.able else found


def _composed(item: Item, words: Sequence[Override], small: bool) -> Composed:
    out = Composed()
    unused: set[str] | None = None
    done: set[tuple[str, ...]] = set()
    for run in item.runs:
        own = parse(run.settings)
        said = [*smoke(own, words), *words] if small else words
        kept = unless_named(own, said)
        none: set[str] = set()
        key = tuple(one.canonical for one in (*kept, *said))
        if key in done:  # two models of the paper, and one of the command line
            continue
        done.add(key)
        where, cells = cells_of([*kept, *said], none)
        differs = tuple(differences(own, kept, [one for one in said if one.key not in none]))
        unused = none if unused is None else unused & none
        if out.where is not None and where.dir != out.where.dir:
            raise UserError(f"results.dir lists several folders: {out.where.dir}, {where.dir}; an item has one")
        out.where = where
        for one in cells:
            _place(item, one, differs, out)
    out.unused = (unused or set()) & {one.key for one in words}
    return out


def is_smoke(entries: Iterable[Entry]) -> bool:
    """Whether numbers say nothing about the paper: of the embedded model or a random one, or of fewer samples."""
    return any(
        one.cell.model.path is None or any(text.startswith("task.samples=") for text in one.differs) for one in entries
    )


def _place(item: Item, one: Cell, differs: tuple[str, ...], out: Composed) -> None:
    if one.task.name not in out.lacking:
        try:
            _ = one.task.data_sha256 if isinstance(one.task, FromFiles) else None
        except NoData as error:
            out.lacking[one.task.name] = str(error)
    out.entries.append(Entry(one, _at(item, one), differs))


def _at(item: Item, one: Cell) -> tuple[str, ...]:
    """The values of the layout's keys, as the paper's CSV file has them."""
    takes, prompt = one.policy.takes, getattr(one.score, "repeat_prompt", None)
    values = {
        "model": one.model.label.rpartition("/")[2],
        "task": one.task.name,
        "context_length": "" if one.task.context_length is None else str(one.task.context_length),
        "policy": one.policy.name,
        "score": one.score.name if "score" in takes else "",
        "budget": str(one.budget),
        "kind": kind_of(one.task.name),
    }
    if "budget" in takes:  # the full cache is the same whatever they are
        values |= {
            "layout": one.policy.layout,
            "evict_after": one.schedule.evict_after,
            "heads": one.policy.heads.kind,
            "chunk": str(getattr(one.score, "chunk", "")),
            "prompt": "" if prompt is None else str(prompt).strip() or "none",
        }
    return tuple(values.get(key, "") for key in item.keys)


def differences(own: Sequence[Override], kept: Sequence[Override], words: Sequence[Override]) -> Iterable[str]:
    """What the command line says otherwise than the item, word by word.

    A word that lists some of the item's own values is no difference; nor is where a model lies, as long as the last
    part of its path is the same.
    """
    mine = {one.key: one for one in own}
    gone = [one for one in own if one.key not in {one.key for one in kept} | {one.key for one in words}]
    for one in words:
        if one.key in FREE or one.key in PLACES:
            continue
        dropped = [other.canonical for other in gone if other.key.partition(".")[0] == one.key]
        before = mine.get(one.key)
        if before is None:
            yield f"{one.canonical} (the paper's runs do not say it)"
        elif {_last(one.key, value.text) for value in one.values} - {_last(one.key, old.text) for old in before.values}:
            yield f"{one.canonical} instead of {' '.join([before.canonical, *dropped])}"
        else:
            yield from (f"without {text}" for text in dropped)


def _last(key: str, text: str) -> str:
    return text.rstrip("/").rpartition("/")[2] if key == "model.path" else text.strip("\"'")
