"""A report in the format that was asked for, on a stream or into a file."""

import io
from pathlib import Path
from typing import TextIO

from kvbench.report.formats.data import finite, write_json, write_records
from kvbench.report.formats.html import write_html
from kvbench.report.formats.latex import write_latex
from kvbench.report.formats.markdown import write_markdown
from kvbench.report.formats.table import Report
from kvbench.report.formats.text import write_text
from kvbench.report.report_file import text_to

WRITERS = {
    "text": write_text,
    "markdown": write_markdown,
    "latex": write_latex,
    "html": write_html,
    "csv": lambda report, out: write_records(report.records, out, report.columns),
    "json": lambda report, out: write_json(report.tree or finite(report.records), out),
}
"""What writes each of `kvbench.report.report_file.FORMATS`."""


def write_report(report: Report, format: str, out: TextIO | Path) -> None:
    """Write a report in one of the formats. Raises UserError for a file that cannot be written."""
    with text_to(out) as stream:
        WRITERS[format](report, stream)


def emitted(report: Report, format: str) -> str:
    """Return a report as one text."""
    text = io.StringIO()
    WRITERS[format](report, text)
    return text.getvalue()
