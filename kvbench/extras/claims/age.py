"""Which is older, a file of claims or its rows: sentences from the history of both."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from kvbench.extras.claims.answers import Answers
from kvbench.extras.claims.cells import cells_of
from kvbench.extras.claims.file import Claims, ClaimsFile
from kvbench.extras.claims.last_change import Change, last_change
from kvbench.records import NO_SOURCE, Row
from kvbench.records.moments import Span, spans_of
from kvbench.support.grouped import grouped
from kvbench.support.quantity import count_noun, shortened

_LISTED = 3


def sentences(file: ClaimsFile, answers: Answers) -> list[str]:
    """Return when the file was last changed, for each family when its rows were made, and whether the file is older."""
    change = last_change(file.path)
    lines = [f"Claims: {file.path.name}, sha256 {file.sha256[:16]}, {_changed(file.claims, change)}."]
    if answers.table is None:
        return [*lines, "Not run: there is no row. Everything here is planned."]
    spans = spans_of(answers.source, answers.table)
    return [*lines, *(_family(answers, family, change, spans) for family in file.claims.families)]


def _changed(claims: Claims, change: Change | None) -> str:
    if change is not None and change.is_last:
        return f"last changed {_said(change.moment)} by commit {change.commit}"
    known = "no history is at hand" if change is None else f"changed since commit {change.commit} and not committed"
    stated = "does not say when it was written" if claims.written is None else f"says that it is of {claims.written}"
    return f"{known}; the file itself {stated}"


def _family(answers: Answers, family: str, change: Change | None, spans: Mapping[str, Span]) -> str:
    """Return how many rows of a family there are, of which code and when, and whether the file is older."""
    cells = [cell for _, cell in cells_of(answers.claims, family)]
    rows = [row for cell in cells for row in answers.rows(cell)]
    asked = answers.claims.families[family]
    planned = len(cells) * len(asked.tasks) * asked.samples
    if not rows:
        return f"{family}: not run, 0 of {planned} rows."
    made = f"{family}: {len(rows)} of {planned} rows, made by {_codes(rows)}"
    span = Span.over(spans.get(cell) for cell in {row.cell for row in rows})
    if span is None:
        return f"{made}; when is not known of all of them, so nothing shows that the claims are older."
    return f"{made}, from {_said(span.first)} to {_said(span.last)}. {_order(answers.claims, change, span)}"


def _order(claims: Claims, change: Change | None, span: Span) -> str:
    """Return whether the file is older than the first of these rows."""
    if change is not None and change.is_last:
        is_older, of = change.moment < span.first, "The claims are"
    elif claims.written is not None:
        is_older, of = claims.written < span.first.date(), "By its own date the file is"
    else:
        return "Nothing here says that the claims are older."
    return f"{of} older than every one of them." if is_older else f"{of} NOT older than every one of them."


def _codes(rows: Sequence[Row]) -> str:
    """Return the versions of the code, and how many cells are of several."""
    codes = {row.code for row in rows} - {None, NO_SOURCE}
    of_cell = [*grouped(rows, lambda row: row.cell).values()]
    several = sum(len({row.code for row in members}) > 1 for members in of_cell)
    unknown = " and code that is not known" if any(row.code in (None, NO_SOURCE) for row in rows) else ""
    listed = f" ({shortened(sorted(filter(None, codes)), _LISTED)})" if codes else ""
    mixed = f"{several} of {len(of_cell)} cells by several" if several else "each cell by one"
    return f"{count_noun(len(codes), 'version')} of the code{listed}{unknown}, {mixed}"


def _said(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
