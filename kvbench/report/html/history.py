"""A page of runs over time: accuracy, bytes and seconds of each cell in every run, and the gate's verdict on each.

A run is a results folder or a Parquet file of rows; the caller names the oldest first.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from kvbench.records import COLUMNS, ResultsFolder
from kvbench.report.compare.gate import check
from kvbench.report.compare.paired_rows import side
from kvbench.report.export import WHAT, measured, named
from kvbench.report.html.page import check_page, embedded, rendered
from kvbench.report.output import text_to
from kvbench.report.rows import load_table
from kvbench.report.tables.summary import NEEDED, Summary, summaries

MOST = 12
"""Findings of a gate that the page lists."""


@dataclass(frozen=True)
class Run:
    """A run: the numbers of its cells, and the findings of the gate against the run before (None: it is the first)."""

    name: str
    numbers: dict[str, dict[str, float | None]]
    findings: list[str] | None

    @property
    def verdict(self) -> str:
        """The verdict of the gate, in a word."""
        return "first" if self.findings is None else "passed" if not self.findings else "failed"


def runs_of(sources: Sequence[str], warn: Callable[[str], None]) -> list[Run]:
    """Read runs, each judged against its predecessor; kept sets may change. Raises what reading rows raises."""
    runs = []
    for place, source in enumerate(sources):
        cells = summaries(load_table(source, tuple({*NEEDED} & {*COLUMNS}), warn))
        findings = None
        if place:
            before, now = (side(name, name, "", warn) for name in (sources[place - 1], source))
            findings = [str(finding) for finding in check(before, now, kept="note").findings]
        runs.append(Run(_name(source), _numbers(cells), findings))
    return runs


def write_history(sources: Sequence[str], out: Path, warn: Callable[[str], None]) -> None:
    """Write the page. Raises ValueError for a file that is no .html, and what `runs_of` raises."""
    check_page(out)
    runs = runs_of(sources, warn)
    data: list[dict[str, Any]] = [{"name": run.name, "verdict": run.verdict, "numbers": run.numbers} for run in runs]
    cells = len({cell for run in runs for cell in run.numbers})
    html = rendered("history", runs=runs, cells=cells, most=MOST, data=Markup(embedded(data)))
    with text_to(out) as file:
        file.write(html)


def _numbers(cells: Sequence[Summary]) -> dict[str, dict[str, float | None]]:
    return {named(cell): {what: measured(cell, what)[0] for what in WHAT} for cell in cells}


def _name(source: str) -> str:
    """The commit at which the rows were made, if it was recorded, else the name of the file or folder."""
    path = Path(source)
    for name in sorted(os.listdir(path / "environments")) if (path / "environments").is_dir() else ():
        environment = ResultsFolder(path).read_environment(Path(name).stem) or {}
        code = environment.get("source") or {}
        if isinstance(code, dict) and code.get("commit"):
            return f"{str(code['commit'])[:9]}{'+' if code.get('dirty') else ''}"
    return path.stem if path.suffix == ".parquet" else path.name
