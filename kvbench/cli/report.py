"""`kvbench report`: tables, rows, plots and pages, all made of recorded rows. No model, no torch."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import PASS_AT, Parser, Words, split_settings
from kvbench.cli.terminal import tell_written, warner
from kvbench.report.report_file import FORMATS as REPORT_FORMATS
from kvbench.report.report_file import check_format, format_of
from kvbench.support.errors import UserError
from kvbench.support.named import Named, member, named

OWN_FORMATS = {"table": (*REPORT_FORMATS, "parquet"), "rows": ("jsonl", "csv", "parquet")}
"""Formats of reports that have other formats than tables, the usual one first."""
ROWS = "the folder of a run, or a Parquet file of rows"
SELECTION = "[COLUMN=VALUE,...]"
TABLE_KEYS = ("rows=", "cols=", "against=")
DETAILS = """
  kvbench report table --results results/runs --format markdown
  kvbench report table rows=policy cols=context_length task=ruler/niah_* budget=0.1
  kvbench report table --results results/runs --average lava
  kvbench report rows --results results/runs --format parquet --out rows.parquet
  kvbench report plot tradeoff --results results/runs --out tradeoff.png x=bytes

COLUMN=VALUE,... selects rows by any of their columns, or by a setting of their cells (policy.window=32); * and ? are \
wildcards, null is a missing value. against=POLICY marks the means that differ from the means of POLICY beyond \
chance; a SELECTION, as of kvbench compare, where the policy has several scores: against=policy=snapkv,score=attn.
Exit code 4: no row was selected, or none of them has a value.
"""


def declare(parser: Parser) -> None:
    """Add the reports and their flags."""
    tables, plots = named("report"), named("plot")
    kinds = "\n".join(f"  {name:<11} {plot.says}{_written(plot)}" for name, plot in plots.items())
    parser.epilog = f"{DETAILS}\nKinds of plots, and their keys:\n{kinds}\n"
    parser.bare_exit = ExitCode.OK
    table = f"[rows=policy,score] [cols=budget] [against=POLICY|SELECTION] {SELECTION}"
    reports = {
        "table": ("means with intervals, per policy, score and budget", Words(table, settings=TABLE_KEYS)),
        "rows": ("every row, with all of its columns", Words(SELECTION)),
        "plot": (
            "one picture, which goes to FILE, a .pdf, .png or .svg",
            Words(f"KIND [KEY=VALUE] {SELECTION}", lambda before: () if before else plots),
        ),
        **{name: (table.says, _words(table)) for name, table in tables.items() if not table.flags},
    }
    for name, (description, words) in reports.items():
        verb = parser.add_verb(name, description, words._replace(selects_rows=True))
        verb.add_results(ROWS)
        verb.add_partial()
        if is_table := name in OWN_FORMATS or name in tables:
            verb.add_argument("--format", metavar="|".join(OWN_FORMATS.get(name, REPORT_FORMATS)))
        file = "write to a file instead of the screen; its suffix chooses the format" if is_table else None
        verb.add_argument("--out", metavar="FILE", type=Path, help=file)
    averages = "one number over the tasks of LongBench: of its README, of LAVa (20 tasks), of CAOTE and OBCache (16)"
    parser.verbs["table"].add_argument("--average", metavar="official|lava|caote", help=averages)
    parser.verbs["table"].add_argument("--pass-at", metavar="K", type=int, help=PASS_AT)
    over = "what a mean is over: questions (the default), or contexts, each with the mean of its questions, as in KVzip"
    parser.verbs["table"].add_argument("--mean-over", metavar="questions|contexts", default="questions", help=over)
    triggered = "only the prompts in which the method acted: evicted, packed, pruned, or read less than it holds"
    parser.verbs["table"].add_argument("--triggered", action="store_true", help=triggered)
    for name, table in tables.items():
        if table.flags:
            table.load().declare(parser.add_verb(name, table.says))


def main(flags: argparse.Namespace) -> int:
    """Print or draw a report. Raises UserError for bad arguments and MissingFile where there are no rows."""
    report = member("report", flags.verb)
    if report is not None and report.flags:
        return report.load().main(flags)
    if flags.verb == "plot":
        from kvbench.report.plots.plot import plot

        kind, *words = flags.words or [""]
        plot(kind, flags.results, flags.out, settings_of(words), warner(flags.partial))
    else:
        _print(flags, report)
    tell_written(flags.out)
    return ExitCode.OK


def _print(flags: argparse.Namespace, report: Named | None) -> None:
    keys, words = split_settings(flags.words, report.keys if report else ())
    settings = settings_of(words)
    forms = OWN_FORMATS.get(flags.verb, REPORT_FORMATS)
    form = flags.format or format_of(flags.out, forms)
    out, warn = flags.out or sys.stdout, warner(flags.partial)
    if report is not None:
        from kvbench.report.formats.emit import write_report

        check_format(form, forms)
        chosen = {key: _value(key, text, report.keys[key]) for key, text in keys.items()}
        write_report(report.load()(Path(flags.results), warn, where_of(settings), **chosen), form, out)
    elif flags.verb == "table":
        from kvbench.report.tables.table import View, print_table

        view = View(
            **{key.rstrip("="): settings.pop(key.rstrip("="), None) for key in TABLE_KEYS},
            average=flags.average,
            pass_at=flags.pass_at,
            mean_over=flags.mean_over,
            triggered=flags.triggered,
        )
        print_table(flags.results, form, out, view, warn, where_of(settings))
    else:
        from kvbench.report.row_formats import print_rows

        print_rows(flags.results, form, out, warn, where_of(settings))


def _words(report: Named) -> Words:
    """Return the words that a report takes."""
    usage = " ".join([*(f"[{key}={default}]" for key, default in report.keys.items()), SELECTION])
    return Words(usage, settings=tuple(f"{key}=" for key in report.keys))


def _value(key: str, text: str, default: Any) -> Any:
    """Return the value of a report's setting, of the type of its default. Raises UserError for another."""
    try:
        return type(default)(text)
    except ValueError:
        raise UserError(f"{key}={text}: allowed: a number, such as {key}={default}") from None


def _written(plot: Named) -> str:
    """Return the keys of a kind of plot and their values, as help shows them."""
    return ": " * bool(plot.keys) + " ".join(f"{key}={'|'.join(values)}" for key, values in plot.keys.items())


def where_of(settings: Mapping[str, str]) -> dict[str, list[str]]:
    """Return which rows settings select: the values of each column."""
    return {key: [value.strip() for value in values.split(",")] for key, values in settings.items()}


def settings_of(words: Sequence[str]) -> dict[str, str]:
    """Words of the form key=value. Raises UserError for another word and for a key that is named twice."""
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            fix = f"write --results {word}" if Path(word).exists() else "see kvbench report --help"
            raise UserError(f"cannot read {word}: settings are key=value[,value]; {fix}")
        if key in settings:
            raise UserError(f"{key} is named twice; list its values: {key}={settings[key]},{value}")
        settings[key] = value
    return settings
