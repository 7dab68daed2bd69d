"""The commands that write, each on a few rows of prompts of a dozen tokens."""

import json
from pathlib import Path

from benchmarks.damage import write
from benchmarks.write_faults.trials import Command, run
from kvbench.records import ResultsFolder
from kvbench.records.processes import Heartbeat
from kvbench.records.row import with_checksum
from kvbench.support.paths import assets

SAMPLES = 2
SWEEP = (
    *("policy=snapkv", "budget=40", "task=jsonl", "task.path=prompts.jsonl", "task.max_new_tokens=2"),
    *("results.kept=lengths", "results.lease_seconds=3600"),
)
RUN = ("run", *SWEEP, "results.dir=results")


def prompts(folder: Path) -> None:
    """The prompts of a sweep."""
    lines = [
        {"context": f"the word is w{n}; " * 12, "question": "what is the word", "answers": [f"w{n}"]}
        for n in range(SAMPLES)
    ]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def recorded(folder: Path) -> None:
    """A results folder with a row of each cell less than the sweep requests."""
    prompts(folder)
    run(folder, (*RUN, "task.samples=1", "--quiet"))


def two_folders(folder: Path) -> None:
    """Two folders that have a part of the rows each, and one sample both."""
    prompts(folder)
    run(folder, (*RUN[:-1], "results.dir=one", "task.samples=1", "--quiet"))
    run(folder, (*RUN[:-1], "results.dir=two", "--quiet"))


def unmanaged(folder: Path) -> None:
    """A results folder without a manifest."""
    write(folder / "results")


def requested(folder: Path) -> None:
    """A folder whose request lacks rows, with a process on another machine that works on it."""
    results = ResultsFolder(write(folder / "results"))
    cell = next(iter(results.read_requested()))
    results.write_sweep(["policy=snapkv"], {cell: 99})
    heartbeat = Heartbeat(results, 60.0, 180.0)
    heartbeat.start()
    heartbeat.end("finished")
    (path,) = (results.path / "processes").glob("*.json")
    process = json.loads(path.read_text())
    del process["checksum"]
    path.write_text(with_checksum(json.dumps(process | {"machine": "another", "ended": None})) + "\n")


def two_alike(folder: Path) -> None:
    """A baseline and a run to hold against it."""
    for name in ("baseline", "results"):
        write(folder / name)
        run(folder, ("pack", "--results", name))


def answered(folder: Path) -> None:
    """Prompts of a tokenizer, with an answer made elsewhere to each."""
    prompts(folder)
    run(folder, PROMPTS)
    lines = [json.loads(line) for line in (folder / "asked.jsonl").read_text().splitlines()]
    answers = [json.dumps(line | {"answer": "w0"}) for line in lines]
    (folder / "answers.jsonl").write_text("\n".join(answers) + "\n")
    (folder / "asked.jsonl").unlink()


TASK = (f"model.path={assets() / 'reference'}", "task=jsonl", "task.path=prompts.jsonl", "task.max_new_tokens=2")
PROMPTS = ("prompts", *TASK, "--out", "asked.jsonl")
MERGE = ("merge", "one", "two", "--out", "merged")
GATE = ("gate", "--baseline", "baseline", "--current", "results", "--junit", "gate.xml", "--summary", "gate.md")
COMMANDS = {
    "run": Command(RUN, ("results",), prompts),
    "run, continued": Command(RUN, ("results",), recorded),
    "merge": Command(MERGE, ("one", "two", "merged"), two_folders, overwrites=False),
    "pack": Command(("pack", "--results", "results"), ("results",), unmanaged),
    "cancel": Command(("cancel", "--results", "results", "--requests"), ("results",), requested),
    "gate": Command((*GATE, "--allow-undecided"), ("baseline", "results"), two_alike),
    "adopt": Command(
        ("adopt", "answers.jsonl", *TASK, "endpoint.method=snapkv", "endpoint.budget=0.2", "results.dir=results"),
        ("results",),
        answered,
    ),
    "prompts": Command(PROMPTS, (), prompts),
    "report": Command(
        ("report", "table", "--results", "results", "--format", "csv", "--out", "table.csv"), ("results",), unmanaged
    ),
    "export": Command(
        ("export", "--results", "results", "--format", "parquet", "--out", "rows.parquet"), ("results",), unmanaged
    ),
    "page": Command(("report", "html", "--results", "results", "--out", "page.html"), ("results",), unmanaged),
}
