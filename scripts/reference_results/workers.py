"""Make the rows of parts of the reference sweeps in one folder; what is there already is not made again.

All parts are one plan, so that a prompt is read once for every cell of every part. Processes share it prompt by prompt,
as `kvbench run` does when it is started several times. Every task of every part gets its first prompts before any gets
many, so that a run that is stopped early is balanced; texts of the embedded model, which are long, come first.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from kvbench.support.grouped import grouped
from reference_results.sweeps import NAMES, REFERENCE, TOP, Part, RowSet, data_root

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from kvbench.records import KeptDetail
    from kvbench.run.cell import Cell
    from kvbench.run.plan import Plan, PrefillGroup
    from kvbench.run.stale import Stale

FILE = "parts.json"
"""Which cells are those of which part, beside their rows."""
STATISTICS = REFERENCE / "queries.safetensors"
"""What the queries of the embedded model are like, on other prompts than those of the sweeps."""


def make_all(
    known: RowSet,
    parts: Sequence[Part],
    results: Path,
    samples: int | None,
    processes: int,
    chosen: "Callable[[Cell], Iterable[int]] | None" = None,
    stale: "Stale" = "stop",
    seconds: float | None = None,
) -> int:
    """Run parts into a folder. Returns 4 where rows have failed, 75 where it was stopped and the same call goes on, and
    what a process that failed returned.

    ``chosen``: the samples of a cell that are made; by default all. stale: what is done about rows of other code.
    seconds: no prompt is begun later; SIGTERM stops as soon. A prompt that was begun is ended.

    A part that reads a book is left out, with a word, where the book is not there: its committed rows stay. So is
    everything where the model is not there. Parts that share a file with these are written down beside them, so that
    rows that were unpacked from it are packed again.
    """
    if known.pulled is not None and not (data_root() / known.pulled).is_dir():
        print(
            f"{known.name}: left out: no {data_root() / known.pulled}; `kvbench data pull {known.pulled}`",
            file=sys.stderr,
        )
        return 0
    there = sorted(filter(_readable, parts), key=lambda part: part.book is None)
    if not there:
        return 0
    os.chdir(TOP)  # sweeps name files of this repository
    if known.name == NAMES[0]:
        measure_queries()
    asked, files = {part.name: part for part in there}, {part.file for part in there}
    beside = {name: part for name, part in known.parts.items() if part.file in files and name not in asked}
    together = asked | {name: part for name, part in beside.items() if _readable(part)}
    cells_of = {name: _cells(part, results, samples) for name, part in together.items()}
    write_parts(results, {name: [cell.id for cell in cells] for name, cells in cells_of.items()})
    spawn, deadline = get_context("spawn"), math.inf if seconds is None else time.time() + seconds
    for kept in dict.fromkeys(part.kept for part in there):
        cells = [cell for part in there if part.kept == kept for cell in cells_of[part.name]]
        left_out = {
            (cell.id, sample)
            for cell in (cells if chosen else ())
            for sample in set(range(cell.task.num_answers)) - set(chosen(cell) if chosen else ())
        }
        left_out |= {
            (cell.id, sample) for part in there for cell in cells_of[part.name] for sample in range(part.first)
        }
        work = [(cells, results, kept, left_out, number == 0, stale, deadline) for number in range(processes)]
        workers = [spawn.Process(target=_work, args=each) for each in work]
        with _stopping(workers):
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        if code := next((worker.exitcode for worker in workers if worker.exitcode), 0):
            return code
    return 0


@contextmanager
def _stopping(workers: "Sequence[SpawnProcess]") -> Iterator[None]:
    """While the block runs, pass SIGTERM on to the workers, which end their prompts."""

    def stop(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()

    earlier = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def measure_queries() -> None:
    """Write the statistics of the embedded model's queries, unless those that are there are of this model."""
    from kvbench.cli.main import main as kvbench
    from kvbench.config.overrides import parse
    from kvbench.extras.heads.triattention import read_statistics
    from kvbench.work.planned import cells_of

    (cell,) = cells_of(parse(["policy=full"]), set())[1]
    if not STATISTICS.is_file() or read_statistics(str(STATISTICS)).model_sha256 != cell.weights:
        task = ("task=ruler/vt", "task.samples=20", "task.context_length=1024")
        assert kvbench(["heads", "--queries", *task, "--output", str(STATISTICS)]) == 0


def write_parts(results: Path, cells: dict[str, list[str]]) -> None:
    """Keep which cells a part has; parts that are known already and not asked for now stay."""
    results.mkdir(parents=True, exist_ok=True)
    (results / FILE).write_text(json.dumps(read_parts(results) | cells, indent=1) + "\n", "utf-8")


def read_parts(results: Path) -> dict[str, list[str]]:
    """The cells of every part that a folder has."""
    file = results / FILE
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def _cells(part: Part, results: Path, samples: int | None) -> "list[Cell]":
    """All tasks of a part; each cell once."""
    from kvbench.config.overrides import parse
    from kvbench.work.planned import cells_of, check_data

    own = [f"data.root={_shelf(part, results)}"] if part.book else []
    cells = [
        cell for settings in part.settings(results, samples) for cell in cells_of(parse([*settings, *own]), set())[1]
    ]
    check_data(cells)
    return cells


def _work(
    cells: "list[Cell]",
    results: Path,
    kept: "KeptDetail",
    left_out: set[tuple[str, int]],
    verbose: bool,
    stale: "Stale",
    deadline: float,
) -> None:
    """One process: make what nobody else makes. Exits with 4 where rows have failed, with 75 where it was stopped."""
    from kvbench.records import ResultsFolder, StopRequested
    from kvbench.records.rows import recorded
    from kvbench.run.job_queue import JobQueue, RunContext
    from kvbench.run.plan import plan
    from kvbench.run.runner import run
    from kvbench.run.stale import SETTLED, settled
    from kvbench.work.failures import ExitCode
    from kvbench.work.progress import progress
    from kvbench.work.sweep import stopping

    folder = ResultsFolder(results)
    rows = recorded(folder, SETTLED, print, {cell.id for cell in cells})
    known = settled(rows, cells, folder, False, stale, print)
    planned = plan(cells, known.done | left_out)
    with stopping(("SIGTERM",)) as signalled, progress(planned) as shown:
        stop = partial(_reason, signalled, deadline)
        try:
            claims = JobQueue(folder, RunContext(replaced=known.replaced, stop=stop))
            made = run(in_rounds(planned), folder, claims, shown, kept)
        except StopRequested as stopped:
            print(f"stopped by {stopped} after a complete prompt; the same command goes on", file=sys.stderr)
            sys.exit(ExitCode.TEMPORARY)
    sys.exit(ExitCode.INCOMPLETE if made.errors else ExitCode.OK)


def _reason(signalled: Callable[[], str | None], deadline: float) -> str | None:
    """Why to stop: a signal, or the time."""
    return signalled() or ("--seconds" if time.time() >= deadline else None)


def in_rounds(planned: "Plan") -> "Plan":
    """The same jobs in another order: one prompt of every group, then a second, two more, four, eight, and so on."""
    rounds: dict[int, list[PrefillGroup]] = {}
    for group in planned.groups:
        for turn, jobs in grouped(group.jobs, lambda job: job.key.bit_length()).items():
            rounds.setdefault(turn, []).append(replace(group, jobs=tuple(jobs)))
    return replace(planned, groups=tuple(group for turn in sorted(rounds) for group in rounds[turn]))


def _readable(part: Part) -> bool:
    if part.needs is None or (data_root() / part.needs).is_file():
        return True
    source = part.needs.partition("/")[0]
    print(f"{part.name}: left out: no {data_root() / part.needs}; `kvbench data pull {source}`", file=sys.stderr)
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
