"""The sweeps of results/reference/sweeps.yaml as settings of `kvbench run`. No torch."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvbench.records import KeptDetail

TOP = Path(__file__).resolve().parents[2]
REFERENCE = TOP / "results" / "reference"
FILE = REFERENCE / "sweeps.yaml"


@dataclass(frozen=True)
class Part:
    """One part of the file: sweeps, crossed with tasks.

    tasks: each with settings of its own. common: settings of all of them. book: the text that the part reads, if it
    reads one. kept: what is recorded of its kept sets, beside the rows.
    """

    name: str
    sweeps: tuple[str, ...]
    tasks: dict[str, str]
    common: str
    samples: int
    book: str | None
    long: bool
    kept: KeptDetail

    def settings(self, results: Path, samples: int | None = None) -> list[list[str]]:
        """The settings of each sweep; `samples`: so many at most."""
        count = self.samples if samples is None else min(samples, self.samples)
        where = [*self.common.split(), f"task.samples={count}", f"results.dir={results}"]
        tasks = [[f"task={task}", *own.split()] for task, own in self.tasks.items()]
        return [[*sweep.split(), *task, *where] for sweep in self.sweeps for task in tasks]


def parts(file: Path = FILE) -> dict[str, Part]:
    """All parts by name."""
    read: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    return {
        name: Part(
            name,
            tuple(own["sweeps"]),
            {task: settings or "" for task, settings in own.get("tasks", read["tasks"]).items()},
            own.get("common", read["common"]),
            own["samples"],
            own.get("book"),
            own.get("long", False),
            own.get("kept", "none"),
        )
        for name, own in read["parts"].items()
    }


def data_root() -> Path:
    """Where texts lie that are not ours: $KVBENCH_DATA, else those that parity tests read, else ./data."""
    shared = os.environ.get("KVBENCH_SHARED")
    return Path(os.environ.get("KVBENCH_DATA") or (Path(shared) / "data" if shared else "data"))
