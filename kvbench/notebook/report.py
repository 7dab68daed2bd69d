"""A report as a terminal and a notebook show it."""

from dataclasses import dataclass
from typing import Any

from kvbench.report.formats.emit import emitted
from kvbench.report.formats.html import html_text
from kvbench.report.formats.table import Report
from kvbench.report.report_file import FORMATS, check_format


@dataclass(frozen=True, repr=False)
class NotebookReport:
    """A report of `kvbench.report`: printed it is text, in a notebook a table."""

    report: Report

    @property
    def frame(self) -> Any:
        """Its numbers as a frame: one row per cell, or per comparison."""
        import pandas

        columns = self.report.columns
        return pandas.DataFrame([*self.report.records], columns=None if columns is None else [*columns])

    def to(self, format: str) -> str:
        """Return the report as text, markdown, latex, html, csv or json."""
        check_format(format, FORMATS)
        return emitted(self.report, format)

    def __repr__(self) -> str:
        return emitted(self.report, "text").rstrip("\n")

    def _repr_html_(self) -> str:
        return html_text(self.report, whole=False)
