"""Notes under tables of committed rows: at most four lines."""

from pathlib import Path

import pytest

from kvbench.report.compare.compare import compare, report_of
from kvbench.report.compare.paired_rows import sides
from kvbench.report.formats.table import Report
from kvbench.report.formats.text import WIDTH, folded
from kvbench.report.tables import footprint, table

RESULTS = Path(__file__).resolve().parents[2] / "results"
FILES = ("reference/main", "smollm2/raw")


def lines(report: Report) -> list[int]:
    """The lines of notes under each table, those under all of them included."""
    shared = sum(len(folded(note, WIDTH, others="  ")) for note in report.notes)
    return [shared + sum(len(folded(note, WIDTH)) for note in each.notes) for each in report.tables]


@pytest.mark.parametrize("name", FILES)
def test_tables_have_at_most_four_lines_of_notes(name: str) -> None:
    report = table.report_of(RESULTS / f"{name}.parquet", warn=lambda text: None)
    assert report.tables and max(lines(report)) <= 4


def test_a_comparison_has_at_most_four_lines_of_notes() -> None:
    words = ["policy=snapkv@common,score=attn,budget=0.6", "policy=cake@common,score=cake,budget=0.6"]
    both = sides(words, str(RESULTS / "smollm2/main.parquet"), lambda text: None)
    report = report_of(compare(*both, resamples=99))
    assert max(lines(report)) <= 4 and any("equivalent: within 10 points" in note for note in report.tables[0].notes)
    assert len(folded(footprint.NOTE, WIDTH)) <= 4
