"""Every format of a report, once for all reports: what each shows of the same two tables."""

import json

import pytest

from kvbench.report.formats.emit import WRITERS, emitted
from kvbench.report.formats.table import Figure, Report, Table, TableRow
from kvbench.report.report_file import FORMATS

TABLE = Table(
    title="model <b>",
    caption=("accuracy in %: mean [95 % interval] of n samples", "window 16"),
    words="accuracy in %",
    competition="of its column",
    seconds=True,
    labels=("policy", "n"),
    heads=(("0.1", "kept 10 %"), ("0.2", "kept 20 %")),
    lines=(
        TableRow(("full", "9"), (Figure("99.0"), Figure("99.0")), reference=True),
        TableRow(("h2o", "9"), (Figure("8.5", "1", "20", best=True), Figure("10.0", note="n=8")), "3 ms"),
        TableRow(("snapkv", "9"), (Figure("7.5", "1", "18", second=True), Figure(note="failed")), "2 ms"),
    ),
    notes=("full: no eviction.",),
    errors=("1 of 27 rows failed:", "out | of memory"),
    aside="evict",
    rules=(0, 1),
)
TEXTS = Table.of(("cell",), ("n", "verdict"), [TableRow.of(["a_b"], ["12", "worse"])], align="rl")
REPORT = Report(
    title="A page",
    head=("Ours: 9 samples.",),
    tables=(TABLE, TEXTS),
    notes=("=1+1",),
    records=[{"policy": "h2o", "mean": float("nan"), "note": "=1+1"}],
)


def test_text_marks_ranks_and_rules_and_aligns_both_sides() -> None:
    expected = """\
A page
Ours: 9 samples.

model <b>
accuracy in %: mean [95 % interval] of n samples; * best of its column, ' second; window 16

policy  n           0.1         0.2  evict
              kept 10 %   kept 20 %
------------------------------------------
full    9  99.0          99.0
------------------------------------------
h2o     9   8.5* [1,20]  10.0   n=8   3 ms
snapkv  9   7.5' [1,18]  failed       2 ms

full: no eviction.
1 of 27 rows failed:
  out | of memory

cell   n  verdict
a_b   12  worse

=1+1
"""
    assert emitted(REPORT, "text") == expected


def test_markdown_has_bold_and_underlined_figures_and_escapes() -> None:
    text = emitted(REPORT, "markdown")
    assert "| h2o | 9 | **8.5** [1, 20] | 10.0 n=8 | 3 ms |" in text and "<ins>7.5</ins> [1, 18]" in text
    assert "**model \\<b>**" in text and "bold is best of its column, underlined second; window 16" in text
    assert "| policy | n | 0.1<br>kept 10 % | 0.2<br>kept 20 % | evict |\n| :-- | :-- | --: | --: | --: |\n" in text
    assert "full: no eviction.\n\n1 of 27 rows failed:\n\n- out \\| of memory\n" in text
    assert "| :-- | --: | :-- |" in text and text.startswith("# A page\n\n*Ours: 9 samples.*\n")


def test_latex_has_no_interval_no_aside_and_columns_of_text() -> None:
    text = emitted(REPORT, "latex")
    assert r"\bfseries 8.5 &" in text and r"\underline{7.5}" in text and "3 ms" not in text and "[1" not in text
    assert r"\caption{Model \textless{}b\textgreater{}: accuracy in \%. \textbf{Bold}" in text
    assert r"\begin{tabular}{lS[table-format=2.0]l}" in text and r"a\_b & 12 & worse \\" in text
    assert text.startswith("% A page\n% Ours: 9 samples.")


def test_html_escapes_and_marks_and_records_are_lossless_and_no_formulas() -> None:
    text = emitted(REPORT, "html")
    assert "<b>8.5</b> <small>[1, 20]</small>" in text and "<u>7.5</u>" in text and "model &lt;b&gt;" in text
    assert emitted(REPORT, "csv") == "policy,mean,note\nh2o,nan,'=1+1\n"
    assert json.loads(emitted(REPORT, "json")) == [{"policy": "h2o", "mean": None, "note": "=1+1"}]
    assert (*WRITERS,) == FORMATS
    assert all(isinstance(emitted(Report(), format), str) for format in FORMATS)


@pytest.mark.parametrize("width", [30, 40, 60])
def test_no_line_is_wider_than_the_screen(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, emitted(REPORT, "text").splitlines())) <= width
