"""`kvbench report table|rows|plot|html|efficiency|cost`: reads rows, prints or draws them. No model, no torch."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvbench.cli.errors import Exit
from kvbench.cli.terminal import tell, warn
from kvbench.cli.usage import Parser, show
from kvbench.support.errors import UserError
from kvbench.support.nearest import closest

USAGE = """kvbench report table [--results DIR] [--format text|markdown|latex|csv|json|parquet] [--out FILE]
                     [rows=policy,score] [cols=budget] [against=POLICY|SELECTION] [COLUMN=VALUE,...]
                     [--average official|lava|caote]
kvbench report rows  [--results DIR] [--format jsonl|csv|parquet] [--out FILE] [COLUMN=VALUE,...]
kvbench report plot KIND [--results DIR] --out FILE.pdf|png|svg [KEY=VALUE] [COLUMN=VALUE,...]
kvbench report efficiency|cost [--results DIR] [--format text|markdown|csv|json] [--out FILE] [COLUMN=VALUE,...]
kvbench report html  [--results DIR] --out FILE.html [samples=20] [COLUMN=VALUE,...]
kvbench report history DIR|FILE.parquet... --out FILE.html

  kvbench report table --results results/runs --format markdown
  kvbench report table rows=policy cols=context_length task=ruler/niah_* budget=0.1
  kvbench report table --results results/runs --average lava
  kvbench report rows --results results/runs --format parquet --out rows.parquet
  kvbench report plot tradeoff --results results/runs --out tradeoff.png x=bytes

--results names the folder of a run, or a Parquet file of rows. COLUMN=VALUE,... selects rows by any of their columns,
or by a setting of their cells (policy.window=32); * and ? are wildcards, null is a missing value.
against=POLICY marks the means that differ from those of that policy beyond chance; a SELECTION, as of kvbench compare,
where the policy has several scores: against=policy=snapkv,score=attn.
--average is one number over the tasks of LongBench: of its README, of LAVa (20 tasks), of CAOTE and OBCache (16).
Exit code 4: no row was selected, or none of them has a value.

efficiency is a line a cell of task=efficiency: seconds, bytes, and how near the device's own speed they come.
cost says what the rows took: tokens read and written, seconds, device seconds, energy where the devices tell it.
html writes one page that needs no network: a table to sort, trade-offs, and of each cell samples=N samples to read.
history writes a page of runs, oldest first: accuracy, bytes and seconds of each cell, and what the gate says of each
run against the one before.

Kinds of plots, and their keys:
  tradeoff    mean against what the cache costs            x=fraction|pairs|bytes intervals=yes|no
  bars        means with intervals, a panel a budget
  perplexity  by position, or against the cost             x=position|fraction|pairs|bytes intervals=yes|no
              y=ratio: by position, divided by the full cache's on the same texts
  needle      depth of the needle x length of the context
  kept        positions of the pairs that stayed           sample=N shows one sample alone
  split       the budget over layers and heads
  latency     seconds and bytes by length of the context   y=step|first_token|prefill|held|peak|both scale=linear|log
"""
REPORTS = ("table", "rows", "plot", "html", "history", "efficiency", "cost")
DEFAULT_FORMAT = {"table": "text", "rows": "jsonl", "efficiency": "text", "cost": "text"}
SUFFIXES = {
    **{f".{name}": name for name in ("csv", "json", "jsonl", "parquet")},
    **{".md": "markdown", ".tex": "latex", ".txt": "text"},
}


def main(arguments: Sequence[str]) -> int:
    """Print a report; exit code 4 where nothing is selected.

    Raises ValueError for bad arguments and FileNotFoundError where there are no rows.
    """
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return 0
    what, *rest = arguments
    if what not in REPORTS:
        raise UserError(f"unknown report {what}: {closest(what, REPORTS)}")
    from kvbench.report.selection import NothingSelected

    try:
        ways = {"table": _table, "rows": _rows, "plot": _plot, "html": _html, "history": _history}
        (ways | {"efficiency": _efficiency, "cost": _cost})[what](rest)
    except NothingSelected as empty:
        tell(f"nothing to report: {empty}")
        return Exit.INCOMPLETE
    return Exit.OK


def _table(arguments: Sequence[str]) -> None:
    from kvbench.report.tables.table import print_table

    asked, settings = _asked(arguments, averages=True)
    rows, cols, against = (settings.pop(name, None) for name in ("rows", "cols", "against"))
    out = asked.out or sys.stdout
    where = where_of(settings)
    print_table(
        asked.results,
        _format("table", asked),
        out,
        rows,
        cols,
        warn,
        where=where,
        against=against,
        average=asked.average,
    )


def _rows(arguments: Sequence[str]) -> None:
    from kvbench.report.export import print_rows

    asked, settings = _asked(arguments)
    print_rows(asked.results, _format("rows", asked), asked.out or sys.stdout, warn, where_of(settings))


def _efficiency(arguments: Sequence[str]) -> None:
    from kvbench.report.tables.efficiency import print_efficiency

    asked, settings = _asked(arguments)
    form = _format("efficiency", asked)
    print_efficiency(Path(asked.results), form, asked.out or sys.stdout, warn, where_of(settings))


def _cost(arguments: Sequence[str]) -> None:
    from kvbench.report.tables.cost import print_cost

    asked, settings = _asked(arguments)
    print_cost(Path(asked.results), _format("cost", asked), asked.out or sys.stdout, warn, where_of(settings))


def _plot(arguments: Sequence[str]) -> None:
    from kvbench.report.plots.plot import plot

    kind, *rest = arguments or [""]
    asked, settings = _asked(rest)
    if asked.format:
        raise UserError("a plot has the format of its file's name; leave out --format")
    plot(kind, asked.results, asked.out, settings, warn)


def _html(arguments: Sequence[str]) -> None:
    from kvbench.report.html.page import write_page

    asked, settings = _asked(arguments)
    if asked.format or asked.out is None:
        raise UserError("a page is written to a file: kvbench report html --out page.html")
    samples = settings.pop("samples", "20")
    if not samples.isdecimal():
        raise UserError(f"samples={samples}: a number of samples of each cell to read on the page, 0 or more")
    write_page(asked.results, asked.out, warn, where_of(settings), int(samples))


def _history(arguments: Sequence[str]) -> None:
    from kvbench.report.html.history import write_history

    parser = Parser("report")
    parser.add_argument("--out", type=Path)
    parser.add_argument("runs", nargs="*")
    asked = parser.parse_intermixed_args(arguments)
    if asked.out is None or not asked.runs:
        raise UserError("a history is a page of runs: kvbench report history DIR DIR --out history.html")
    write_history(asked.runs, asked.out, warn)


def _asked(arguments: Sequence[str], averages: bool = False) -> tuple[argparse.Namespace, dict[str, str]]:
    """The flags that all reports have, and the settings beside them."""
    parser = Parser("report")
    parser.add_argument("--results", default="results/runs")
    parser.add_argument("--format")
    parser.add_argument("--out", type=Path)
    if averages:
        parser.add_argument("--average")
    parser.add_argument("settings", nargs="*")
    asked = parser.parse_intermixed_args(arguments)
    return asked, settings_of(asked.settings)


def _format(what: str, asked: argparse.Namespace) -> str:
    """The format that is named, or that of the file's name."""
    suffix = asked.out.suffix if asked.out else ""
    return asked.format or SUFFIXES.get(suffix, DEFAULT_FORMAT[what])


def where_of(settings: Mapping[str, str]) -> dict[str, list[str]]:
    """Which rows settings select: the values of each column."""
    return {key: [value.strip() for value in values.split(",")] for key, values in settings.items()}


def settings_of(words: Sequence[str]) -> dict[str, str]:
    """Words of the form key=value. Raises ValueError for another word and for a key that is named twice."""
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UserError(f"cannot read {word}: settings are key=value[,value]; see kvbench report --help")
        if key in settings:
            raise UserError(f"{key} is named twice; list its values: {key}={settings[key]},{value}")
        settings[key] = value
    return settings
