"""A page of runs over time: accuracy, bytes and seconds of each cell in every run, and the gate's verdict on each.

A run is a results folder or a Parquet file of rows; the caller names the oldest first. Each is held against the last
one that did not fail, so that a loss stays visible until it is gone. Beside the checks of the gate, timed steps and the
run as a whole must not become slower by more than their noise.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from kvbench.records import ResultsFolder, read_processes
from kvbench.report.colours import Look, looks
from kvbench.report.compare.gate import check
from kvbench.report.compare.paired_rows import Side, side
from kvbench.report.export import WHAT, measured, named
from kvbench.report.html.page import check_page, rendered
from kvbench.report.junit import Case, Outcome, junit_xml
from kvbench.report.output import text_to
from kvbench.report.tables.cost import costs
from kvbench.report.tables.grid import write_json
from kvbench.report.tables.summary import Summary, summaries
from kvbench.report.tables.table import TIMED
from kvbench.support.quantity import size

MOST = 12
"""Findings of a gate that the page lists."""
STEP_NOISE, RUN_NOISE, MEMORY_NOISE = 1.25, 2.0, 1.1
"""How many times as long a timed step, and all rows of a run, may take from run to run on one machine; and how many
times as many bytes they may hold at most."""
_OF_RUN = ("all rows took", "all rows held")
_NAMED = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)\d\dZ-(\w+)")
"""The file of a run that `scripts/history.sh` adds: its time and commit."""


class Spent(NamedTuple):
    """Seconds or bytes, how many times as much is noise, and how an amount is written."""

    amount: float
    noise: float
    written: Callable[[float], str]


@dataclass(frozen=True)
class Run:
    """A run: the numbers of its cells, and the findings against the run ``baseline`` (None: it is the first).

    Runs are counted from 1. ``methods``: policy and score of each cell, and whether it is measured in %.
    ``costs``: seconds and bytes of timed cells and of all rows, each with its noise.
    ``failing_since``: the first of the failed runs that end with this one.
    """

    number: int
    name: str
    date: str
    numbers: dict[str, dict[str, float | None]]
    methods: dict[str, tuple[str, str, bool]]
    costs: dict[str, Spent]
    findings: list[str] | None
    baseline: int | None
    failing_since: int | None

    @property
    def status(self) -> str:
        """The verdict of the gate, in a word."""
        return "first" if self.findings is None else "passed" if not self.findings else "failed"

    @property
    def label(self) -> str:
        """The number, commit and date."""
        return f"run {self.number} ({', '.join(filter(None, (self.date, self.name)))})"


def runs_of(sources: Sequence[str], warn: Callable[[str], None]) -> list[Run]:
    """Read runs and judge them; kept sets may change. Raises what reading rows raises."""
    runs: list[Run] = []
    accepted: tuple[Run, Side] | None = None
    for number, source in enumerate(sources, 1):
        now = side(source, source, "", warn)
        cells = summaries(now.rows)
        numbers = {named(cell): {what: measured(cell, what)[0] for what in WHAT} for cell in cells}
        spent = _costs(now, cells)
        findings = None
        if accepted is not None:
            baseline, before = accepted
            findings = [str(finding) for finding in check(before, now, kept="note").findings]
            same_cells = baseline.numbers.keys() == numbers.keys()
            for what, (amount, noise, written) in spent.items():
                is_comparable = what in baseline.costs and (same_cells or what not in _OF_RUN)
                previous = baseline.costs[what].amount if is_comparable else 0
                if previous and amount > noise * previous:
                    times = f"x{amount / previous:.2f}, more than the noise of x{noise:g}"
                    findings.append(f"{what} {written(previous)} -> {written(amount)} ({times})")
        since = (runs[-1].failing_since or number) if findings else None
        against = None if accepted is None else accepted[0].number
        methods = {named(cell): (cell.policy, cell.score or cell.policy, cell.rate) for cell in cells}
        run = Run(number, *_name_and_date(source), numbers, methods, spent, findings, against, since)
        runs.append(run)
        accepted = accepted if findings else (run, now)
    return runs


def _costs(run: Side, cells: Sequence[Summary]) -> dict[str, Spent]:
    """Seconds and peak bytes."""
    peaks: dict[str, int] = {}
    for row in run.rows:
        peaks[row.cell] = max(peaks.get(row.cell, 0), row.peak_bytes or 0)
    spent: dict[str, Spent] = {}
    for cell in cells:
        if cell.metric == TIMED:
            spent[f"{named(cell)}: decoding takes"] = Spent(cell.mean or 0.0, STEP_NOISE, "{:.3g} s".format)
            spent[f"{named(cell)}: the cache holds"] = Spent(peaks[cell.cell], MEMORY_NOISE, _bytes)
    seconds = sum(cost.seconds for cost in costs(Path(run.source), lambda text: None))
    held = Spent(max(peaks.values()), MEMORY_NOISE, _bytes)
    return spent | {_OF_RUN[0]: Spent(seconds, RUN_NOISE, "{:.3g} s".format), _OF_RUN[1]: held}


def _bytes(amount: float) -> str:
    return size([amount])


def _cells(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """How the cells of all runs are drawn: in the colour of the policy, or of the score if there is one policy."""
    methods = {name: method for run in runs for name, method in run.methods.items()}
    evicting = {(policy, score) for policy, score, _ in methods.values() if policy != "full"}
    alone = len({policy for policy, _ in evicting}) == 1 < len(evicting)
    named_by = {name: score if alone else policy for name, (policy, score, _) in methods.items()}
    styles = looks(sorted({*named_by.values()})) | {"full": Look("#767676", "", "circle")}
    return {name: {"look": styles[named_by[name]][::2], "percent": is_rate} for name, (*_, is_rate) in methods.items()}


def write_history(
    sources: Sequence[str], out: Path, warn: Callable[[str], None], json: Path | None = None, junit: Path | None = None
) -> None:
    """Write the page, and what machines read of it. Raises ValueError for a file that is no .html."""
    check_page(out)
    runs = runs_of(sources, warn)
    names = ("label", "status", "baseline", "numbers")
    data = {"runs": [{name: getattr(run, name) for name in names} for run in runs], "cells": _cells(runs)}
    folded = [list(group) for _, group in groupby(reversed(runs), lambda run: run.number * (run.status != "passed"))]
    noise = {"step": STEP_NOISE, "run": RUN_NOISE, "memory": MEMORY_NOISE}
    html = rendered("history", data, runs=runs, folded=folded, cells=len(data["cells"]), most=MOST, noise=noise)
    with text_to(out) as file:
        file.write(html)
    if json is not None:
        names = ("number", "status", "failing_since", "baseline", "date", "findings")
        items = [{name: getattr(run, name) for name in names} | {"commit": run.name} for run in runs]
        with text_to(json) as file:
            write_json({"runs": items}, file)
    if junit is not None:
        outcomes = [[Outcome("failure", finding) for finding in run.findings or ()] for run in runs]
        cases = [Case("kvbench.history", run.label, failures) for run, failures in zip(runs, outcomes, strict=True)]
        with text_to(junit) as file:
            file.write(junit_xml("kvbench history", {"runs": cases}))


def _name_and_date(source: str) -> tuple[str, str]:
    """The commit at which the rows were made, else the name of the file or folder; and when, if it was recorded."""
    path = Path(source)
    if match := _NAMED.fullmatch(path.stem):
        year, month, day, hour, minute, commit = match.groups()
        return commit, f"{year}-{month}-{day} {hour}:{minute}"
    started = min((process.started_utc for process in read_processes(path)), default="") if path.is_dir() else ""
    for name in sorted(os.listdir(path / "environments")) if (path / "environments").is_dir() else ():
        environment = ResultsFolder(path).read_environment(Path(name).stem) or {}
        code = environment.get("source") or {}
        if isinstance(code, dict) and code.get("commit"):
            return f"{str(code['commit'])[:9]}{'+' if code.get('dirty') else ''}", started[:16].replace("T", " ")
    return path.stem if path.suffix == ".parquet" else path.name, started[:16].replace("T", " ")
