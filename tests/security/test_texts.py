"""What a model, a task or a folder of others says is printed as text: no control sign, markup, command or formula."""

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.records import Row
from kvbench.report.formats.data import write_csv
from kvbench.report.formats.markdown import escaped
from kvbench.support.text import printable
from tests.cli.conftest import Command
from tests.security.conftest import CONTROL, FORMULA, MARKUP, TEXT

Folder = Callable[..., Path]
NUMBER = re.compile(r"[+-]?[\d.]+([eE][+-]?\d+)?")


@pytest.fixture
def both(folder: Folder, hostile: Callable[..., list[Row]]) -> tuple[str, str]:
    """Two folders with the same questions, the second with worse answers."""
    return str(folder("first")), str(folder("second", hostile(1, environment=None, cache_bytes=2048)))


def commands(first: str, second: str, form: str) -> list[list[str]]:
    """The commands that print a table in a form."""
    table_commands = [["report", "cost", "--results", first, "--format", form]]
    if form != "json":
        table_commands += [["report", "table", "--results", first, "--format", form]]
    table_commands += [["compare", first, second, "--format", form]]
    return table_commands + (
        [] if form == "csv" else [["gate", "--baseline", first, "--current", second, "--format", form]]
    )


def test_text_moves_no_cursor(kvbench: Command, both: tuple[str, str]) -> None:
    for command in commands(*both, "text"):
        finished = kvbench(*command)
        assert finished.code in (0, 5), finished.err
        assert "HYPERLINK" in finished.out and not CONTROL.search(finished.out + finished.err), command
    for command in (["status", "--results", both[0]], ["report", "table", "--results", both[0], f"task={TEXT}"]):
        assert not CONTROL.search(kvbench(*command).err)


def test_markdown_has_no_markup_of_others(kvbench: Command, both: tuple[str, str]) -> None:
    for command in [*commands(*both, "markdown"), ["export", "--results", both[0], "--format", "markdown"]]:
        finished = kvbench(*command)
        assert "script>" in finished.out and not CONTROL.search(finished.out), command
        assert not re.search(r"(?<!\\)<(?!br>)", finished.out), command
        assert "](javascript" not in finished.out.replace(r"\](", ""), command


def test_latex_has_no_commands_of_others(kvbench: Command, both: tuple[str, str]) -> None:
    latex = kvbench("report", "table", "--results", both[0], "--format", "latex").out
    assert "HYPERLINK" in latex and not CONTROL.search(latex)
    assert not re.search(r"\\(input|write18)", latex) and r"\textbackslash{}input\{" in latex


def test_a_label_is_no_argument_of_the_line_break_before_it() -> None:
    from kvbench.report.formats.latex import _label

    assert [_label(sign) for sign in ("[x]", "*x", "x[")] == ["{}[x]", "{}*x", "x["]


def test_csv_has_no_formulas(kvbench: Command, both: tuple[str, str]) -> None:
    rows = ["report", "rows", "--results", both[0], "--format", "csv"]
    for command in [*commands(*both, "csv"), rows]:
        finished = kvbench(*command)
        assert not CONTROL.search(finished.out.replace("\u2028", "")), command
        fields = [field for line in csv.reader(io.StringIO(finished.out)) for field in line]
        assert any(FORMULA in field for field in fields), command
        for field in fields:
            assert field[:1] not in ("=", "+", "-", "@", "\t", "\r") or NUMBER.fullmatch(field), field


def test_a_formula_gets_an_apostrophe() -> None:
    for text in ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1"):
        out = io.StringIO()
        write_csv([[text]], out)
        assert next(csv.reader(io.StringIO(out.getvalue(), newline=""))) == [f"'{text}"]
        assert out.getvalue().startswith('"') == ("\r" in text)


def test_numbers_words_tabs_and_line_ends_stay_in_csv() -> None:
    values = ["-0.5", "+3", "-1e-5", "-.5", "", "a=b", "1-2", -0.5, None, 3]
    write_csv([[value, "x"] for value in values], out := io.StringIO())
    assert out.getvalue() == "".join(f"{'' if value is None else value},x\n" for value in values)
    write_csv([["a\tb\r\n\x1b[31m"]], out := io.StringIO())
    assert out.getvalue() == '"a\tb\r\n\\x1b[31m"\n'


def test_junit_is_whole_xml(kvbench: Command, both: tuple[str, str], tmp_path: Path) -> None:
    kvbench("gate", "--baseline", both[0], "--current", both[1], "--junit", str(tmp_path / "gate.xml"))
    for text in (kvbench("export", "--results", both[0], "--format", "junit").out, (tmp_path / "gate.xml").read_text()):
        assert MARKUP in " ".join(" ".join(element.attrib.values()) for element in ET.fromstring(text).iter())


def test_annotations_are_one_line_each(kvbench: Command, both: tuple[str, str]) -> None:
    annotations = kvbench("gate", "--baseline", both[0], "--current", both[1], "--github").out
    commands = [line for line in annotations.splitlines() if line.startswith("::")]
    assert commands and all(line.startswith("::error title=kvbench gate") for line in commands)
    assert not CONTROL.search(annotations)


def test_pages_hold_texts_as_data(kvbench: Command, both: tuple[str, str], tmp_path: Path) -> None:
    for command in (["report", "html", "--results", both[0]], ["report", "history", *both, "--no-fail"]):
        assert kvbench(*command, "--out", str(tmp_path / "page.html")).code == 0
        html = (tmp_path / "page.html").read_text()
        assert "HYPERLINK" in html and "<script>alert" not in html and "<img src=x" not in html
    script = Path(__file__).parents[2] / "kvbench" / "extras" / "view" / "page.js"
    assert "title = plain(first.metric" in script.read_text()  # plotly reads markup in the titles of axes


def test_a_picture_takes_no_text_for_a_formula(
    kvbench: Command, folder: Folder, hostile: Callable[..., list[Row]], tmp_path: Path
) -> None:
    text = r"$\frac{$ a $x"
    cells = [hostile(3, cell=cell, policy=text, score=cell, task=text, budget="0.2") for cell in ("aa", "bb")]
    path = folder("dollars", *cells, hostile(3, cell="cc", policy=text, score="aa", task=text))
    for kind in ("tradeoff", "bars"):
        result = kvbench("report", "plot", kind, "--results", str(path), "--out", f"{kind}.svg")
        assert result.code == 0 and (tmp_path / f"{kind}.svg").stat().st_size, result.err


def test_printable_is_one_line() -> None:
    shown = {"a\x1b[31mb": r"a\x1b[31mb", "a\tb\nc\r\n": "a b c  ", "\u202eabc": r"\u202eabc"}
    shown |= {"\ud800": r"\ud800", "\uffff": r"\uffff"}
    for text, line in shown.items():
        assert printable(text) == line and printable(line) == line


def test_plain_text_is_left_alone() -> None:
    text = "Köln, 東京, naïve – 95 % ± 2 ▲ 👩‍🔬"
    assert printable(text) == text
    assert escaped("obcache_joint (0.1) [12, 13] & co") == "obcache_joint (0.1) [12, 13] & co"
    assert escaped("_a_ &lt; [x](y) ~") == r"\_a\_ \&lt; [x\](y) \~"
