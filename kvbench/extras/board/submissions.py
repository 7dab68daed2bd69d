"""Submissions to a board: results folders with a true manifest, and files or folders of rows as Parquet.

A results folder needs a manifest that lists every file as it is. A Parquet file has a checksum of its own, which is
checked as it is read. Cells that an earlier submission has too are held against its rows by the gate: the same prompts,
kept sets, bytes, and no loss. Rows of the same cell and sample count once, from the first submission.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvbench.records import ResultsFolder
from kvbench.records.environment import content_hash
from kvbench.records.lines import Warn, check_name, listed
from kvbench.records.manifest import true_manifest
from kvbench.records.parquet import checked_bytes
from kvbench.records.rows import Describe
from kvbench.report.compare.gate import FAILED, PASSED, Gate, check
from kvbench.report.compare.paired_rows import side
from kvbench.report.held import NEEDED, held_bytes
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import Where
from kvbench.report.stats.verdicts import INCONCLUSIVE
from kvbench.support.errors import MissingFile, NothingSelected, UserError
from kvbench.support.quantity import shortened

if TYPE_CHECKING:
    import pandas

LABELS = ("policy", "score", "variant", "layout", "schedule")
"""Columns that tell methods of one submission apart."""
QUESTION = ("model", "task", "task_version", "context_length", "seed")
COLUMNS = (
    *(*QUESTION, *LABELS, "budget", "cell", "sample", "metric", "unit", "better", "value"),
    *("prompt_sha256", "context_sha256", *(name for name in NEEDED if name not in LABELS)),
)


@dataclass(frozen=True)
class Submission:
    """A folder or a set of files: its name, what it is known by, how many rows it adds, and what the gate said.

    ``gated``: cells in common with earlier submissions. ``verdict``: of the gate, "" where none is in common.
    """

    name: str
    root: str
    rows: int
    gated: int = 0
    verdict: str = ""


def read_submissions(
    sources: Sequence[str], warn: Warn, where: Where | None = None
) -> tuple["pandas.DataFrame", Describe, list[Submission], list[Gate]]:
    """Return the rows of all submissions, what describes their cells, the submissions, and how the gate judged them.

    Rows have the columns ``submission``, ``held_bytes`` and ``full_held_bytes`` too.

    Raises UserError for a folder without a true manifest, MissingFile where there are no rows, and what reading rows
    raises. A source in which nothing is selected is left out; NothingSelected is raised if that is so of all.
    """
    import pandas  # late: it takes half a second

    frames: list[pandas.DataFrame] = []
    submissions: list[Submission] = []
    gates: list[Gate] = []
    reasons: list[NothingSelected] = []
    for name, paths in _by_name(sources).items():
        root = _root(name, paths)
        earlier = {path: cells for frame in frames for path, cells in frame.groupby("source").cell.unique().items()}
        gated, already = 0, len(gates)
        added = []
        for path in paths:
            try:
                table = load_table(path, COLUMNS, warn, where)
            except NothingSelected as error:
                reasons.append(error)
                continue
            frame = table.to_pandas().assign(submission=name, source=str(path), **held_bytes(table))
            for other, cells in earlier.items():
                if shared := sorted({*cells} & {*frame.cell}):
                    gates.append(_gate(Path(other), path, shared, warn))
                    gated += len(shared)
            added.append(frame)
        if added:
            rows = pandas.concat([*frames, *added]).drop_duplicates(["cell", "sample"])
            own = rows.query("submission == @name")
            frames.append(own)
            verdicts = [gate.verdict for gate in gates[already:]]
            verdict = next((text for text in (FAILED, INCONCLUSIVE, PASSED) if text in verdicts), "")
            submissions.append(Submission(name, root, len(own), gated, verdict))
    if not frames:
        raise reasons[0]
    every = pandas.concat(frames, ignore_index=True)
    source_of = every.drop_duplicates("cell").set_index("cell").source.to_dict()
    describe = {source: describer(source) for source in {*source_of.values()}}
    return every, lambda cell: describe[source_of[cell]](cell), submissions, gates


def _gate(first: Path, second: Path, cells: Sequence[str], warn: Warn) -> Gate:
    """Compare the rows of these cells on the samples that both have."""
    a, b = (side(str(path), path, {"cell": cells}, warn) for path in (first, second))
    common = {(row.cell, row.sample) for row in a.rows} & {(row.cell, row.sample) for row in b.rows}
    a, b = (replace(each, rows=[row for row in each.rows if (row.cell, row.sample) in common]) for each in (a, b))
    return check(a, b)


def _by_name(sources: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders and files to read by the name of their submission: a folder's name, or the name of Parquet
    files.

    Raises UserError for a source that is named twice.
    """
    files_of: dict[str, list[Path]] = {}
    for source in sources:
        check_name(path := Path(source))
        is_results = (path / "rows").is_dir()
        files = listed(path, ".parquet") if path.is_dir() and not is_results else [path]
        if not files or not path.exists():
            raise MissingFile(f"{source}: neither a results folder (rows/) nor Parquet files of rows")
        name = os.path.normpath(path if path.is_dir() else path.parent if path.parent.name else path)
        own_files = files_of.setdefault(name, [])
        if repeated := {*own_files} & {*files}:
            raise UserError(f"{shortened(sorted(map(str, repeated)), 3)} is named twice; name each source once")
        own_files += files
    return files_of


def _root(name: str, paths: Sequence[Path]) -> str:
    """Return the root of a manifest, or the hash of the hashes of Parquet files: what a reader can check a copy by."""

    def refuse(reason: str) -> None:
        raise UserError(f"{reason.removesuffix('; not cited')}; kvbench pack --results {name} writes the manifest anew")

    if paths[0].suffix == ".parquet":
        digests = {path.name: hashlib.sha256(checked_bytes(path)[0]).hexdigest() for path in paths}
        return content_hash(digests)[:16]
    folder = ResultsFolder(paths[0])
    if (manifest := true_manifest(folder, refuse)) is None:
        raise UserError(f"{name} has no manifest.json: kvbench pack --results {name} writes it")
    return manifest.root[:16]
