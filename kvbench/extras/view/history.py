"""A page of runs over time: accuracy, bytes and seconds of each cell in every run, and the gate's verdict on each.

A run is a results folder or a Parquet file of rows; the caller names the oldest first. Each is held against two runs:
the last one that did not fail, and the anchor, so that neither a loss that stays nor many small ones pass. What each
cell, and all of them, lost against the anchor is also summed over the runs (`kvbench.extras.view.cusum`). Timed steps
and the run as a whole must not become slower than the last run that did not fail by more than their noise.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from json import loads
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from kvbench.extras.view.cusum import is_alarm, next_sum
from kvbench.extras.view.page import check_page
from kvbench.extras.view.rendered import rendered
from kvbench.records import ResultsFolder, Row, read_processes
from kvbench.records.lines import listed
from kvbench.report.charts import QUANTITIES, measured, names_of
from kvbench.report.colours import SYMBOLS, looks
from kvbench.report.compare.gate import FAILED, PASSED, Finding, Gate, check
from kvbench.report.compare.gate_formats import folded
from kvbench.report.compare.paired_rows import CELL, QUESTION, Side, side
from kvbench.report.formats.data import write_json
from kvbench.report.junit import Case, Outcome, junit_xml
from kvbench.report.report_file import text_to
from kvbench.report.row_warnings import versions
from kvbench.report.rows import code_reader, describer, load_table
from kvbench.report.stats.paired import TIMED
from kvbench.report.stats.verdicts import INCONCLUSIVE
from kvbench.report.tables.cost import costs
from kvbench.report.tables.summary import NEEDED, Summary, summaries
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped
from kvbench.support.quantity import size
from kvbench.support.whole_file import read_whole

MOST = 12
"""Findings of a gate that the page lists."""
STEP_NOISE, RUN_NOISE, MEMORY_NOISE = 1.25, 2.0, 1.1
"""How many times as long a timed step, and all rows of a run, may take from run to run on one machine; and how many
times as many bytes they may hold at most."""
_CODE_SCHEMA = pa.schema([("cell", pa.string()), ("code", pa.string())])
_RUN_COSTS = ("all rows took", "all rows held")
_NAMED = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)\d\dZ-(\w+)")
"""The file of a run that `scripts/history.sh` adds: its time and commit."""


class RunCost(NamedTuple):
    """Seconds or bytes, how many times as much is noise, and how an amount is written."""

    amount: float
    noise: float
    written: Callable[[float], str]


class Code(NamedTuple):
    """The commit at which the rows of a run were made, "" if it is unknown, and the address of its repository."""

    commit: str
    is_changed: bool
    repository: str | None

    @property
    def name(self) -> str:
        """The commit, shortened, with a + where the code differed from it."""
        return f"{self.commit[:9]}{'+' if self.is_changed else ''}"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run: the numbers of its cells, and what the gate found.

    Runs are counted from 1. ``limits``: the interval of each cell's accuracy, in the unit of ``numbers``. ``methods``:
    policy and score of each cell, and whether it is measured in %. ``costs``: seconds and bytes of timed cells and of
    all rows, each with its noise. ``baseline anchor``: the runs that this one was held against, None if there is none.
    ``parts``: the versions of each part of the code by cell; ``changed``: the parts that a cell has in others than in
    the run before. ``gates``: how it was held against baseline and anchor. ``sums``: the CUSUM of each test of the
    gate. ``failing_since``: the first of the failed runs that end with this one.
    """

    number: int
    name: str
    date: str
    code: Code
    numbers: dict[str, dict[str, float | None]]
    limits: dict[str, tuple[float, float]]
    methods: dict[str, tuple[str, str, bool]]
    costs: dict[str, RunCost]
    baseline: int | None
    anchor: int | None
    parts: Mapping[tuple[str, str], frozenset[str]]
    changed: tuple[str, ...]
    gates: tuple[Gate, ...] = ()
    sums: Mapping[str, float]
    problems: tuple[Finding, ...]
    undecided: tuple[Finding, ...]
    failing_since: int | None

    @property
    def status(self) -> str:
        """The verdict in a word."""
        if self.baseline is None:
            return "first"
        return FAILED if self.problems else INCONCLUSIVE if self.undecided else PASSED

    @property
    def stands_alone(self) -> bool:
        """Whether the page has a line for it: not if it passed with the code of the run before."""
        return self.status != PASSED or bool(self.changed)

    @property
    def findings(self) -> list[str] | None:
        """Reasons why the run failed, None for the first."""
        return None if self.baseline is None else [str(problem) for problem in self.problems]

    @property
    def open(self) -> list[str]:
        """Questions on which the gate is inconclusive."""
        return [str(finding) for finding in folded(self.undecided)]

    @property
    def label(self) -> str:
        """The number, commit and date."""
        return f"run {self.number} ({', '.join(filter(None, (self.date, self.name)))})"


def runs_of(sources: Sequence[str], warn: Callable[[str], None], anchor: str | None = None) -> list[Run]:
    """Read runs and judge them; kept sets may change.

    ``anchor``: the number or the name of a run; by default the first. A cell or sample that it lacks is held against
    the first accepted run that has it. Raises UserError for another, and what reading
    rows raises.
    """
    anchor_number = _number_of(anchor, sources)
    runs: list[Run] = []
    last_accepted: tuple[Run, Side] | None = None
    anchored: tuple[Run, Side] | None = None
    name_of = names(sources)
    for number, source in enumerate(sources, 1):
        current = side(source, source, "", warn)
        cells = summaries(current.rows)
        spent = _costs(current, cells, name_of)
        gates: list[Gate] = []
        problems: list[Finding] = []
        undecided: list[Finding] = []
        sums: dict[str, float] = {}
        baseline, reference = (pair and pair[0] for pair in (last_accepted, anchored))
        if last_accepted is not None:
            gates.append(check(last_accepted[1], current, kept="note"))
            problems += gates[0].findings
            undecided += gates[0].undecided
        if anchored is not None and reference is not baseline:
            gates.append(check(anchored[1], current, kept="note"))
            problems += _anchor_findings(gates[-1].findings, problems, anchored[1].name)
            undecided += _anchor_findings(gates[-1].undecided, undecided, anchored[1].name)
        if anchored is not None:
            sums = _sums(gates[-1], runs[-1].sums)
            problems += _drifts(gates[-1], sums, anchored[1].name, problems)
        if baseline is not None:
            same_cells = baseline.methods.keys() == {name_of[cell.cell] for cell in cells}
            problems += _grown_costs(spent, baseline.costs, same_cells)
        name, date, code = _name_and_date(source)
        parts = _parts(current, name_of)
        run = Run(
            number=number,
            name=name,
            date=date,
            code=code,
            numbers={
                name_of[cell.cell]: {quantity: measured(cell, quantity)[0] for quantity in QUANTITIES} for cell in cells
            },
            limits={name_of[cell.cell]: limits for cell in cells if (limits := _limits(cell))},
            methods={name_of[cell.cell]: (cell.policy, cell.score or cell.policy, cell.rate) for cell in cells},
            costs=spent,
            baseline=baseline and baseline.number,
            anchor=reference and reference.number,
            parts=parts,
            changed=_changed(parts, runs[-1].parts) if runs else (),
            gates=tuple(gates),
            sums=sums,
            problems=tuple(problems),
            undecided=tuple(undecided),
            failing_since=(runs[-1].failing_since or number) if problems else None,
        )
        runs.append(run)
        last_accepted = last_accepted if problems else (run, current)
        if number == anchor_number:
            anchored = run, replace(current, name=f"run {number}")
        elif anchored is not None and not problems:
            anchored = anchored[0], _extended(anchored[1], current, name_of)
    return runs


def names(sources: Sequence[str]) -> dict[str, str]:
    """Return the name of each cell of all runs: one for all cells of an experiment, whose code alone may differ.

    Raises what reading rows raises.
    """
    runs = [summaries(load_table(source, NEEDED, lambda text: None)) for source in sources]
    described: dict[str, Mapping[str, Any] | None] = {}
    for source, cells in zip(sources, runs, strict=True):
        describe = describer(source)
        described |= {cell.cell: described.get(cell.cell) or describe(cell.cell) for cell in cells}
    return names_of(runs, described.get)


def _parts(run: Side, name_of: Mapping[str, str]) -> dict[tuple[str, str], frozenset[str]]:
    """Return the versions of the code by cell and part."""
    parts = {}
    for cell, rows in grouped(run.rows, lambda row: row.cell).items():
        table = pa.table({name: [getattr(row, name) for row in rows] for name in ("cell", "code")}, _CODE_SCHEMA)
        counted = versions(table, code_reader(run.source))
        parts |= {(name_of[cell], part): frozenset(counts) for part, counts in counted.items()}
    return parts


def _changed(
    parts: Mapping[tuple[str, str], frozenset[str]], before: Mapping[tuple[str, str], frozenset[str]]
) -> tuple[str, ...]:
    """Return the parts of the code that a cell of both runs has in different versions: other cells have other parts."""
    return tuple(sorted({key[1] for key in parts.keys() & before.keys() if parts[key] != before[key]}))


def _number_of(anchor: str | None, sources: Sequence[str]) -> int:
    if anchor is None:
        return 1
    if anchor in sources:
        return sources.index(anchor) + 1
    if anchor.isdecimal() and 1 <= int(anchor) <= len(sources):
        return int(anchor)
    raise UserError(f"--anchor {anchor}: allowed: a run as it is named here, or its number, 1 to {len(sources)}")


def _extended(anchor: Side, run: Side, name_of: Mapping[str, str]) -> Side:
    """Return the anchor, with rows of accepted runs that it lacks: a later cell is compared with its own first run."""

    def place(row: Row) -> tuple[Any, ...]:
        """Key of a row: experiment, pairing columns of the gate, sample."""
        columns = (getattr(row, name) for name in (*QUESTION, *CELL) if name != "task_version")
        return (name_of[row.cell], *columns, row.sample)

    anchor_places = set(map(place, anchor.rows))
    if not (new := [row for row in run.rows if place(row) not in anchor_places]):
        return anchor
    cells = {row.cell for row in new}
    name = anchor.name if "first run" in anchor.name else f"{anchor.name} or the first run that has it"
    return replace(
        anchor,
        name=name,
        rows=[*anchor.rows, *new],
        describe=lambda cell: (run if cell in cells else anchor).describe(cell),
    )


def _anchor_findings(findings: Sequence[Finding], baseline_findings: Sequence[Finding], anchor: str) -> list[Finding]:
    """Return findings against the anchor in places where the last accepted run showed none by the same check."""
    places = {(finding.check, finding.where) for finding in baseline_findings}
    return [
        replace(finding, text=f"against the anchor, {anchor}: {finding.text}")
        for finding in findings
        if (finding.check, finding.where) not in places
    ]


def _sums(gate: Gate, before: Mapping[str, float]) -> dict[str, float]:
    """Return the CUSUM of every test of the gate against the anchor that could find anything."""
    sums = {}
    for test in gate.all_tests:
        if test.smallest is not None:
            effect = max(test.smallest, test.min_effect)
            sums[test.where] = next_sum(before.get(test.where, 0.0), test.loss, effect)
    return sums


def _drifts(gate: Gate, sums: Mapping[str, float], anchor: str, problems: Sequence[Finding]) -> list[Finding]:
    """Return tests for which CUSUM alone raises an alarm."""
    places = {finding.where for finding in problems}
    return [
        Finding("regression", test.where, (), f"losses against the anchor, {anchor}, add up over the runs")
        for test in gate.all_tests
        if is_alarm(sums.get(test.where, 0.0)) and test.loss > 0 and test.where not in places
    ]


def _grown_costs(spent: Mapping[str, RunCost], before: Mapping[str, RunCost], same_cells: bool) -> list[Finding]:
    """Return seconds and bytes that grew by more than their noise."""
    findings = []
    for cost, (amount, noise, written) in spent.items():
        previous = before[cost].amount if cost in before and (same_cells or cost not in _RUN_COSTS) else 0
        if previous and amount > noise * previous:
            times = f"x{amount / previous:.2f}, more than the noise of x{noise:g}"
            findings.append(Finding("cost", cost, (), f"{written(previous)} -> {written(amount)} ({times})"))
    return findings


def _limits(cell: Summary) -> tuple[float, float] | None:
    """Return the interval of the accuracy of a cell."""
    scale = 100 if cell.rate else 1
    return None if cell.low is None or cell.high is None else (scale * cell.low, scale * cell.high)


def _costs(run: Side, cells: Sequence[Summary], name_of: Mapping[str, str]) -> dict[str, RunCost]:
    """Return seconds and peak bytes."""
    peaks: dict[str, int] = {}
    for row in run.rows:
        peaks[row.cell] = max(peaks.get(row.cell, 0), row.peak_bytes or 0)
    spent: dict[str, RunCost] = {}
    for cell in cells:
        if cell.metric == TIMED:
            spent[f"{name_of[cell.cell]}: decoding takes"] = RunCost(cell.mean or 0.0, STEP_NOISE, "{:.3g} s".format)
            spent[f"{name_of[cell.cell]}: the cache holds"] = RunCost(peaks[cell.cell], MEMORY_NOISE, _bytes)
    seconds = sum(cost.seconds or 0.0 for cost in costs(Path(run.source), lambda text: None))
    held = RunCost(max(peaks.values()), MEMORY_NOISE, _bytes)
    return spent | {_RUN_COSTS[0]: RunCost(seconds, RUN_NOISE, "{:.3g} s".format), _RUN_COSTS[1]: held}


def _bytes(amount: float) -> str:
    return size([amount])


def _cells(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return how the cells of all runs are drawn: in the colour of the policy, or of the score if there is one policy.

    Cells of one colour have different markers, filled and then hollow, and then other dashes.
    """
    methods = {name: method for run in runs for name, method in run.methods.items()}
    evicting = {(policy, score) for policy, score, _ in methods.values() if policy != "full"}
    alone = len({policy for policy, _ in evicting}) == 1 < len(evicting)
    named_by = {name: score if alone else policy for name, (policy, score, _) in methods.items()}
    colours = {name: look.colour for name, look in looks(sorted({*named_by.values()})).items()} | {"full": "#767676"}
    places: dict[str, int] = {}
    styles = {}
    for name in sorted(methods):
        colour = colours[named_by[name]]
        place = places[colour] = places.get(colour, -1) + 1
        turn, symbol = divmod(place, len(SYMBOLS))
        look = (colour, SYMBOLS[symbol] + "-open" * (turn % 2), turn // 2)
        styles[name] = {"look": look, "percent": methods[name][2]}
    return styles


def history_page(
    sources: Sequence[str], warn: Callable[[str], None], anchor: str | None = None, served: bool = False
) -> tuple[list[Run], str]:
    """Return the runs and their page. `served`: as `kvbench.extras.view.rendered.rendered`. Raises what `runs_of`
    raises.
    """
    runs = runs_of(sources, warn, anchor)
    names = ("label", "status", "baseline", "numbers", "limits")
    data = {"runs": [{name: getattr(run, name) for name in names} for run in runs], "cells": _cells(runs)}
    folded_runs = [list(group) for _, group in groupby(reversed(runs), lambda run: run.number * run.stands_alone)]
    noise = {"step": STEP_NOISE, "run": RUN_NOISE, "memory": MEMORY_NOISE}
    context = {"runs": runs, "folded": folded_runs, "cells": len(data["cells"]), "most": MOST, "noise": noise}
    context |= {"anchor": _number_of(anchor, sources), "link": _link, "table": _table(runs[-1])}
    return runs, rendered("history", data, served, **context)


def write_history(
    sources: Sequence[str],
    out: Path,
    warn: Callable[[str], None],
    json: Path | None = None,
    junit: Path | None = None,
    anchor: str | None = None,
) -> Run:
    """Write the page, and what machines read of it; returns the newest run.

    Raises UserError for a file that is no .html, and what `runs_of` raises.
    """
    check_page(out)
    runs, html = history_page(sources, warn, anchor)
    with text_to(out) as file:
        file.write(html)
    if json is not None:
        names = ("number", "status", "failing_since", "baseline", "anchor", "date", "findings")
        items = [
            {name: getattr(run, name) for name in names}
            | {"undecided": run.open, "commit": run.name, "code_changed": list(run.changed)}
            for run in runs
        ]
        with text_to(json) as file:
            write_json({"runs": items}, file)
    if junit is not None:
        with text_to(junit) as file:
            file.write(junit_xml("kvbench history", {"newest run": _cases(runs[-1]), "earlier runs": _earlier(runs)}))
    return runs[-1]


def _cases(run: Run) -> list[Case]:
    """Return one case per cell of the newest run, and for what was found elsewhere; each with one outcome at most."""
    places = [*run.methods] if run.baseline is None else [where for gate in run.gates for where in gate.cells]
    places += [finding.where for finding in (*run.problems, *run.undecided)]
    cases = []
    for where in dict.fromkeys(places):
        outcomes = [
            _outcome(tag, findings, where) for tag, findings in (("failure", run.problems), ("skipped", run.undecided))
        ]
        cases.append(Case(f"kvbench.history.run{run.number}", where, [outcome for outcome in outcomes if outcome][:1]))
    return cases


def _outcome(tag: str, findings: Sequence[Finding], where: str) -> Outcome | None:
    texts = [f"{finding.check}: {finding.message}" for finding in findings if finding.where == where]
    prefix = f"{INCONCLUSIVE}: " if tag == "skipped" else ""
    return Outcome(tag, prefix + "; ".join(texts), "", "\n".join(texts)) if texts else None


def _earlier(runs: Sequence[Run]) -> list[Case]:
    """Return one case per run before the newest, as a note: an old failure fails no build."""
    lines = [[run.status, *(run.findings or ())] for run in runs[:-1]]
    return [Case("kvbench.history", run.label, (), "\n".join(texts)) for run, texts in zip(runs, lines, strict=False)]


def _table(run: Run) -> list[list[str]]:
    """Return every test of the newest run against the last accepted one: what it measured, and what it could have
    found.
    """
    if not run.gates:
        return []
    gate = run.gates[0]
    lines = []
    for test in gate.all_tests:
        shows = "nothing" if test.smallest is None else test.number(test.smallest)
        total = f"{100 * run.sums[test.where]:.0f} %" if test.where in run.sums else ""
        limits = ["" if limit is None else test.number(limit) for limit in (test.low, test.high)]
        interval = f"[{', '.join(limits)}]" if all(limits) else ""
        verdict = (
            FAILED if any(problem.where == test.where for problem in run.problems) else gate.verdict_of(test.where)
        )
        lines.append([test.where, str(test.prompts), *test.figures, interval, shows, total, verdict])
    return lines


def _link(run: Run, before: Run) -> str | None:
    """Return the page of the change between the commits of two runs, where their environments name them and a
    repository.
    """
    commits = run.code.commit, before.code.commit
    same = run.code.repository and run.code.repository == before.code.repository
    return f"{run.code.repository}/compare/{commits[1]}...{commits[0]}" if same and all(commits) else None


def _name_and_date(source: str) -> tuple[str, str, Code]:
    """Return the commit of the rows, else the name of the file or folder; when they were made, if known; and the
    code.
    """
    path = Path(source)
    code = _code(path)
    if match := _NAMED.fullmatch(path.stem):
        year, month, day, hour, minute, commit = match.groups()
        return commit, f"{year}-{month}-{day} {hour}:{minute}", code
    started = min((process.started_utc for process in read_processes(path)), default="") if path.is_dir() else ""
    name = path.stem if path.suffix == ".parquet" else path.name
    return code.name or name, started[:16].replace("T", " "), code


def _code(path: Path) -> Code:
    """Return the code that the environments of a folder name, or the JSON file beside a Parquet file."""
    for environment in _environments(path):
        code = environment.get("source")
        if isinstance(code, dict) and code.get("commit"):
            repository = str(code.get("repository") or "")
            is_address = repository.startswith(("https://", "http://"))
            return Code(str(code["commit"]), bool(code.get("dirty")), repository if is_address else None)
    return Code("", False, None)


def _environments(path: Path) -> Iterator[dict[str, Any]]:
    if (path / "environments").is_dir():
        for file in listed(path / "environments"):
            yield ResultsFolder(path).read_environment(file.stem) or {}
    elif (beside := path.with_suffix(".json")).is_file():
        try:
            content = loads(read_whole(beside).decode("utf-8"))
        except ValueError:
            raise UserError(f"{beside}: not the JSON of an environment; remove it, or write it again") from None
        yield content if isinstance(content, dict) else {}
