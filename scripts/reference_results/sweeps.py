"""The sweeps of results/NAME/sweeps.yaml as settings of `kvbench run`. No torch."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from kvbench.records import KeptDetail

TOP = Path(__file__).resolve().parents[2]
RESULTS = TOP / "results"
REFERENCE = RESULTS / "reference"
NAMES = ("reference", "smollm2", "confirm")
"""The models with committed rows: the folders of `results` that hold a sweeps.yaml."""


@dataclass(frozen=True)
class Part:
    """One part of the file: sweeps, crossed with tasks.

    tasks: each with settings of its own. common: settings of all of them. first samples: the numbers of its first
    sample, and of the one after its last; none before is made. book: the text that the part reads, if it reads one.
    needs: a file of others without which its tasks have no prompts. data: whether its tasks look for files of others.
    kept: what is recorded of its kept sets. file: its committed file, which parts may share.
    """

    name: str
    sweeps: tuple[str, ...]
    tasks: dict[str, str]
    common: str
    samples: int
    first: int = 0
    book: str | None = None
    needs: str | None = None
    long: bool = False
    data: bool = False
    kept: KeptDetail = "none"
    file: str = ""

    def settings(self, results: Path, samples: int | None = None) -> list[list[str]]:
        """The settings of each sweep; `samples`: so many at most."""
        count = self.samples if samples is None else min(samples, self.samples)
        where = [*self.common.split(), f"task.samples={count}", f"results.dir={results}"]
        where += [f"data.root={data_root().resolve()}"] if self.data else []
        tasks = [[f"task={task}", *own.split()] for task, own in self.tasks.items()]
        return [_merged(sweep.split(), task, where) for sweep in self.sweeps for task in tasks]


def _merged(*parts: Sequence[str]) -> list[str]:
    """Words of a command line, each setting once: an earlier part wins."""
    words: dict[str, str] = {}
    for word in chain.from_iterable(parts):
        words.setdefault(word.partition("=")[0], word)
    return list(words.values())


@dataclass(frozen=True)
class RowSet:
    """The committed rows of one model, results/NAME.

    parts: by name. gated: those of which the gate makes rows again.
    tables: the Markdown tables of the main part, by file, and which rows they show. pulled: what `kvbench data pull`
    gets first.
    """

    name: str
    parts: Mapping[str, Part]
    gated: tuple[str, ...]
    tables: Mapping[str, Mapping[str, list[str]]]
    pulled: str | None = None

    @property
    def folder(self) -> Path:
        """Where the committed files are."""
        return RESULTS / self.name

    @property
    def runs(self) -> Path:
        """Where rows are made, unless another folder is named."""
        return RESULTS / "runs" / self.name


def row_set(name: str) -> RowSet:
    """The committed rows of a model by the name of their folder."""
    read: dict[str, Any] = yaml.safe_load((RESULTS / name / "sweeps.yaml").read_text("utf-8"))
    found = {
        part: Part(
            part,
            tuple(own["sweeps"]),
            {task: settings or "" for task, settings in own.get("tasks", read.get("tasks", {})).items()},
            own.get("common", read["common"]),
            own["samples"],
            own.get("first", 0),
            own.get("book"),
            own.get("needs", own.get("book")),
            own.get("long", False),
            own.get("data", read.get("data", False)),
            own.get("kept", "none"),
            own.get("file", part),
        )
        for part, own in read["parts"].items()
    }
    shown: dict[str, dict[str, list[Any]]] = read.get("tables", {})
    tables = {file: {key: list(map(str, values)) for key, values in where.items()} for file, where in shown.items()}
    return RowSet(name, found, tuple(read.get("gated", ())), tables, read.get("pulled"))


def data_root() -> Path:
    """Where texts lie that are not ours: $KVBENCH_DATA, else those that parity tests read, else ./data."""
    shared = os.environ.get("KVBENCH_SHARED")
    return Path(os.environ.get("KVBENCH_DATA") or (Path(shared) / "data" if shared else "data"))
