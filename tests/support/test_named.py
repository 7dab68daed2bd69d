"""Commands, reports and plots of other packages: one YAML file and one function each."""

import re
from pathlib import Path

import pytest

from kvbench.cli.main import commands, main
from kvbench.support import named
from kvbench.support.named import made, member
from tests.plugins import made_up

ROWS = "results/reference/variants.parquet"
CODE = '''
from collections import Counter

from matplotlib.figure import Figure

from kvbench.report.formats.table import Report, TableRow, Table
from kvbench.report.rows import load


def declare(parser):
    parser.description = "Say hello."


def main(flags):
    print("hello")
    return 0


def report_of(source, warn, where=None, least=1):
    """How many rows each policy has."""
    counts = Counter(row.policy for row in load(source, warn, where))
    lines = [TableRow.of((name,), (str(count),)) for name, count in counts.items() if count >= least]
    return Report(tables=(Table.of(("policy",), ("rows",), lines),))


def draw(request):
    figure = Figure()
    figure.suptitle(f"{len(request.cells())} cells by {request.settings.get('x', 'cell')}")
    return figure
'''
FILES = {
    "__init__.py": CODE,
    "conf/command/hello.yaml": "says: say hello\nheading: Read\n_target_: counting\n",
    "conf/report/counts.yaml": "says: rows of each policy\n_target_: counting.report_of\nkeys: {least: 1}\n",
    "conf/plot/counts.yaml": "says: cells in a title\n_target_: counting.draw\nkeys: {x: [cell, row]}\n",
}


def test_a_package_adds_a_command_a_report_and_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "counting", FILES)))
    assert [*commands()].index("hello") < [*commands()].index("list")
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "  hello       say hello\n" in printed and re.search(
        "  report +table, rows, plot, cost, .*run, counts\n", printed
    )
    assert main(["list", "commands"]) == 0 and "run, counts" in capsys.readouterr().out
    assert main(["hello"]) == 0 and capsys.readouterr().out == "hello\n"
    assert main(["report", "counts", "--results", ROWS, "policy=h2o_obcache", "--partial"]) == 0
    assert re.search(r"h2o_obcache +\d+\n", capsys.readouterr().out)
    for words, says in ((["least=x"], "least=x: allowed: a number, such as least=1"), (["at=1"], "at")):
        assert main(["report", "counts", "--results", ROWS, *words]) == 2
        assert says in capsys.readouterr().err
    out = tmp_path / "counts.svg"
    assert main(["report", "plot", "counts", "x=row", "--results", ROWS, "--partial", "--out", str(out)]) == 0
    assert "cells by row" in out.read_text("utf-8")
    assert main(["report", "plot", "counts", "x=z", "--results", ROWS, "--out", str(out)]) == 2
    assert "allowed for counts: x=cell|row" in capsys.readouterr().err


def test_what_is_broken_is_named_and_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"__init__.py": "", "conf/command/lost.yaml": "says: nothing\n_target_: counted.nowhere\n"}
    monkeypatch.syspath_prepend(str(made_up(tmp_path, "counted", files)))
    assert main(["lost"]) == 2 and "counted.nowhere, which cannot be imported" in capsys.readouterr().err
    monkeypatch.syspath_prepend(str(made_up(tmp_path / "more", "unreadable", {"conf/command/none.yaml": "says: [\n"})))
    assert main(["--help"]) == 0 and member("command", "none") is None


@pytest.mark.parametrize("name", ["../score/attn", "", "run.yaml", "no_such"])
def test_only_a_name_is_a_member(name: str) -> None:
    assert member("command", name) is None


def test_how_a_file_is_made_is_said_where_something_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("head_table") == "; kvbench heads writes one" and made("head_table", " ({})")[:2] == " ("
    assert made("nothing") == made("") == ""
    monkeypatch.setattr(named, "own_sources", lambda: ())
    assert made("head_table") == ""
