"""Run parts of the reference sweeps, so many processes at a time; what is there already is not made again."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from reference_results.sweeps import Part, data_root


def make_all(parts: Sequence[Part], results: Path, samples: int | None, processes: int) -> int:
    """Run parts into folders of their names, a process a task. Returns the first exit code that is not 0.

    A part that reads a book is left out, with a word, where the book is not there: its committed rows stay.
    """
    waiting = [(part, task) for part in parts if _readable(part) for task in part.tasks]
    running: list[subprocess.Popen[bytes]] = []
    code = 0
    while waiting or running:
        while waiting and len(running) < processes:
            part, task = waiting.pop(0)
            words = ["one", "--part", part.name, "--task", task, "--results", str(results)]
            words += [] if samples is None else ["--samples", str(samples)]
            running.append(subprocess.Popen([sys.executable, sys.argv[0], *words]))
        code = code or running.pop(0).wait()
    return code


def make(part: Part, task: str, results: Path, samples: int | None) -> int:
    """Run what is missing of one task here: one plan for all sweeps, so that they share prefills. Exit code 4 where
    rows have failed.
    """
    from kvbench.claims import Sharing
    from kvbench.cli.overrides import parse
    from kvbench.cli.progress import progress
    from kvbench.cli.sweep import checked
    from kvbench.plan import plan
    from kvbench.records import ResultsFolder, done, read_rows
    from kvbench.runner import run

    folder = ResultsFolder(results / part.name)
    own = [f"data.root={_shelf(part, results)}"] if part.book else []
    cells = [
        cell
        for words in part.settings(task, results / part.name, samples)
        for cell in checked(parse([*words, *own]))[1]
    ]
    planned = plan(cells, done(read_rows(folder)))
    with progress(planned) as shown:
        return 4 if run(planned, folder, shown, "none", Sharing()).errors else 0


def _readable(part: Part) -> bool:
    if part.book is None or (data_root() / part.book).is_file():
        return True
    print(f"reference: {part.name} left out: no {data_root() / part.book}; `kvbench data pull pg19`", file=sys.stderr)
    return False


def _shelf(part: Part, results: Path) -> Path:
    """A data folder with the part's book alone, so that sample 0 is that book wherever there are others."""
    assert part.book is not None
    shelf = results / "shelf"
    link = shelf / part.book
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to((data_root() / part.book).resolve())
    return shelf
