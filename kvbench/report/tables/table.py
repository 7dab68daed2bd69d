"""`kvbench report table`: one figure a cell of the sweep, its interval beside it.

A sheet for a terminal or a text file: aligned columns, cut into parts where the screen is too narrow.
"""

import json
import math
import os
import textwrap
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from kvbench.records import Row
from kvbench.report.compare.compare import Mark, survivors
from kvbench.report.output import check_format, file_to, text_to
from kvbench.report.rows import Warn, describer, load, load_table
from kvbench.report.selection import Where, conditions, has
from kvbench.report.tables.average import averaged
from kvbench.report.tables.grid import escaped, markdown_line, write_csv
from kvbench.report.tables.latex import latex_text
from kvbench.report.tables.pivot import COLUMNS, LINES, arrange, check_keys
from kvbench.report.tables.sheet import Figure, Sheet, sheet
from kvbench.report.tables.summary import COLUMNS as SUMMARY_COLUMNS
from kvbench.report.tables.summary import NEEDED, Summary, frame_of, summaries
from kvbench.support.errors import UserError
from kvbench.support.printable import printable

FORMATS = ("text", "markdown", "latex", "csv", "json", "parquet")
LONG = ("csv", "json", "parquet")  # one line a cell
WIDTH = 100  # of text that does not go to a terminal


def print_table(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO | Path,
    rows: str | Sequence[str] | None = None,
    cols: str | Sequence[str] | None = None,
    warn: Warn = warnings.warn,
    width: int | None = None,
    where: Where | None = None,
    against: str | None = None,
    average: str | None = None,
) -> None:
    """Write the table of a results folder.

    ``text``, ``markdown``, ``latex``: a block a (model, task, context length), a line a policy and score, a column a
    budget, or what ``rows`` and ``cols`` name instead ("policy,layout"). The formats in ``LONG`` are one line a cell,
    all columns of `kvbench.report.tables.summary.Summary`, no ``rows`` and ``cols``. ``where``: which rows, see
    `kvbench.report.selection`. ``against``: a policy, or a selection as of `kvbench compare`
    ("policy=snapkv,score=attn"); the cells that differ from it beyond chance are marked.
    ``average``: one line a setting over the tasks of LongBench instead, see `kvbench.report.tables.average`. ``width``:
    columns of text; default: those of the terminal, or ``WIDTH`` where ``out`` is none. Colour only on a terminal, and
    not where NO_COLOR is set.

    Raises ValueError for an unknown format, key or policy, FileNotFoundError where there are no rows, NothingSelected
    where none is selected.
    """
    check_format(format, FORMATS)
    if format in LONG and (rows, cols, against) != (None, None, None):
        blocks = "|".join(known for known in FORMATS if known not in LONG)
        named = "rows= and cols=" if against is None else "against="
        raise UserError(f"--format {format} is one line a cell; leave {named} out, or choose --format {blocks}")
    if format == "parquet" and not isinstance(out, Path):
        raise UserError("--format parquet is no text; name a file with --out FILE.parquet")
    rows, cols = _keys(rows, LINES), _keys(cols, COLUMNS)
    if rows == LINES or cols == COLUMNS:  # naming only one of them may claim a key of the other's default
        rows = tuple(key for key in rows if rows is not LINES or key not in cols)
        cols = tuple(key for key in cols if cols is not COLUMNS or key not in rows)
    check_keys(rows, cols)
    by_question = "question_number" in (*rows, *cols)
    if by_question and (against, average) != (None, None):
        what = "against= compares" if average is None else "--average takes"
        raise UserError(f"{what} whole cells: leave question_number out of rows= and cols=, or that out")
    lines = summaries(load_table(folder, NEEDED, warn, where), by_question)
    if average is not None:
        if against is not None:
            raise UserError("--average and against= do not go together: what is marked are cells of one task")
        lines = averaged(lines, average)
    if format == "parquet":
        assert isinstance(out, Path)
        file_to(out, lambda path: frame_of(lines).to_parquet(path, index=False))
        return
    marks = {} if against is None else _marks(folder, where, against)
    sheets = [] if format in LONG else _sheets(lines, folder, rows, cols, marks, against or "")
    with text_to(out) as stream:
        if format == "csv":
            write_csv(SUMMARY_COLUMNS, lines, stream)
        elif format == "json":
            _write_json(lines, stream)
        elif format == "markdown":
            stream.write("\n\n".join("\n".join(markdown_lines(part)) for part in sheets) + "\n")
        elif format == "latex":
            stream.write("\n\n".join(latex_text(part) for part in sheets) + "\n")
        else:
            _print_text(sheets, stream, width)


def _write_json(lines: Sequence[Summary], out: TextIO) -> None:
    """One object a line of the table, failed samples by message; a number without an end is missing."""
    found = []
    for line in lines:
        columns = {name: getattr(line, name) for name in SUMMARY_COLUMNS}
        finite = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in columns.items()}
        found.append(finite | {"failures": line.failures, "blank_samples": line.blank_samples})
    json.dump(found, out, indent=1, allow_nan=False)
    out.write("\n")


def print_table_of(found: Sequence[Row], folder: str | os.PathLike[str], out: TextIO) -> None:
    """Write the text table of rows that were read from `folder` already."""
    _print_text(_sheets(summaries(found), folder, LINES, COLUMNS), out, None)


def _sheets(
    lines: Sequence[Summary],
    folder: str | os.PathLike[str],
    rows: tuple[str, ...],
    cols: tuple[str, ...],
    marks: Mapping[str, Mark] | None = None,
    against: str = "",
) -> list[Sheet]:
    return [sheet(block, marks, against) for block in arrange(lines, rows, cols, describer(folder))]


def _marks(folder: str | os.PathLike[str], where: Where | None, against: str) -> dict[str, Mark]:
    """Raises ValueError where no selected row is one of these."""
    found = load(folder, lambda text: None, where)  # told once already
    asked = conditions(against if "=" in against else f"policy={against}")
    describe = describer(folder)
    bases = {row.cell for row in found if has(row, asked, describe)}
    if not bases:
        known = ", ".join(sorted({row.policy for row in found}))
        raise UserError(f"against={against}: no selected row has that; there is policy {known}")
    try:
        return survivors(found, lambda row: row.cell in bases)
    except ValueError as error:
        raise UserError(f"against={against}: {error}") from error


def _keys(named: str | Sequence[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    if named is None:
        return default
    return tuple(key.strip() for key in (named.split(",") if isinstance(named, str) else named) if key.strip())


def _print_text(sheets: Sequence[Sheet], out: TextIO, width: int | None) -> None:
    console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for i, part in enumerate(sheets):
        if i:
            out.write("\n")
        lines = text_lines(part, width or (console.width if console.is_terminal else WIDTH))
        if not console.is_terminal:
            out.write(plain(lines))
            continue
        for line in lines:
            console.print(Text.assemble(*line))


Span = tuple[str, str]  # text, style (a rich style; "" for none)


@dataclass(frozen=True)
class _Column:
    """One column, each string padded to its width: the head from top to bottom, then one string a line."""

    heads: tuple[str, ...]
    body: tuple[str, ...]
    styles: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.body[0])


def text_lines(sheet: Sheet, width: int) -> list[list[Span]]:
    """The lines of one sheet, none longer than ``width`` unless a single column is; spans of text with their style."""
    sheet = _printable(sheet)
    labels = _labels(sheet)
    columns = [_figures(sheet, i) for i in range(len(sheet.heads))]
    out: list[list[Span]] = [[(line, "bold")] for line in textwrap.wrap(sheet.title, width)]
    out += [[(line, "")] for line in textwrap.wrap(sheet.caption, width)]
    columns += [_evict(sheet)] if any(line.evict for line in sheet.lines) else []
    gap = 2 if _width([labels, *columns], 2) <= width or _width([labels, *columns], 1) > width else 1
    for part in _parts(labels, columns, gap, width):
        out.append([("", "")])
        out += _grid(part, [line.reference for line in sheet.lines], gap)
    if sheet.notes or sheet.errors:
        out.append([("", "")])
    for note in sheet.notes:
        out += [[(line, "dim")] for line in textwrap.wrap(note, width)]
    for i, error in enumerate(sheet.errors):
        wrapped = textwrap.wrap(error, width, initial_indent="  " if i else "", subsequent_indent="    ")
        out += [[(line, "red")] for line in wrapped]
    return out


def _printable(sheet: Sheet) -> Sheet:
    """The sheet with texts that a terminal only prints."""

    def said(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(printable, texts))

    lines = [replace(line, labels=said(line.labels)) for line in sheet.lines]
    return replace(
        sheet,
        title=printable(sheet.title),
        caption=printable(sheet.caption),
        heads=tuple(map(said, sheet.heads)),
        lines=tuple(lines),
        notes=said(sheet.notes),
        errors=said(sheet.errors),
    )


def plain(lines: Sequence[Sequence[Span]]) -> str:
    """The text without its styles."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def _width(columns: Sequence[_Column], gap: int) -> int:
    return sum(column.width for column in columns) + gap * (len(columns) - 1)


def _parts(labels: _Column, columns: list[_Column], gap: int, width: int) -> list[list[_Column]]:
    """Columns that fit on the screen beside the labels, part by part."""
    parts = [[labels]]
    for column in columns:
        if len(parts[-1]) > 1 and _width([*parts[-1], column], gap) > width:
            parts.append([labels])
        parts[-1].append(column)
    return parts


def _grid(columns: list[_Column], references: Sequence[bool], gap: int) -> list[list[Span]]:
    lines = [_joined([(column.heads[i], "bold" if i == 0 else "dim") for column in columns], gap) for i in range(3)]
    lines = [line for line in lines if any(text.strip() for text, _ in line)]
    rule = [("-" * _width(columns, gap), "dim")]
    lines.append(rule)
    for i, reference in enumerate(references):
        lines.append(_joined([(column.body[i], column.styles[i]) for column in columns], gap))
        if reference and i + 1 < len(references) and not references[i + 1]:
            lines.append(rule)
    return lines


def _joined(spans: list[Span], gap: int) -> list[Span]:
    joined = [spans[0]]
    for span in spans[1:]:
        joined += [(" " * gap, ""), span]
    return joined


def _labels(sheet: Sheet) -> _Column:
    """All labels in one column. A label with nothing to its right may run over its neighbours' place."""
    table = [sheet.labels, *(line.labels for line in sheet.lines)]
    widths = [
        max((len(labels[i]) for labels in table if any(labels[i + 1 :])), default=0) for i in range(len(sheet.labels))
    ]
    joined = ["  ".join(f"{label:{widths[i]}}" for i, label in enumerate(labels)).rstrip() for labels in table]
    width = max(len(text) for text in joined)
    head, *body = (f"{text:{width}}" for text in joined)
    return _Column((head, " " * width, " " * width), tuple(body), ("",) * len(body))


def _figures(sheet: Sheet, index: int) -> _Column:
    """Means, stars, intervals and notes each aligned among themselves, as a whole to the right."""
    figures = [line.figures[index] for line in sheet.lines]
    mean = max(len(figure.mean) for figure in figures)
    star = any(known.best for line in sheet.lines for known in line.figures)
    low, high, note = (max(len(getattr(figure, name)) for figure in figures) for name in ("low", "high", "note"))
    interval = low + high + 3 if low else 0

    def said(figure: Figure) -> str:
        if not figure.mean:
            return figure.note.rjust(mean + star)
        between = f"[{figure.low:>{low}},{figure.high:>{high}}]" if figure.low else " " * interval
        text = f"{figure.mean:>{mean}}" + (("*" if figure.best else " ") if star else "")
        return f"{text} {between} {figure.note:<{note}}".rstrip() if note else f"{text} {between}".rstrip()

    body = [said(figure) for figure in figures]
    inner = max(map(len, body))
    body = [f"{text:{inner}}" for text in body]
    width = max(inner, *(len(text) for text in sheet.heads[index]))
    styles = tuple(
        "dim" if line.reference else "bold green" if figure.best else "red" if figure.note and not figure.mean else ""
        for line, figure in zip(sheet.lines, figures, strict=True)
    )
    return _Column(
        tuple(f"{text:>{width}}" for text in sheet.heads[index]), tuple(f"{text:>{width}}" for text in body), styles
    )


def _evict(sheet: Sheet) -> _Column:
    head, body = "evict", [line.evict for line in sheet.lines]
    width = max(len(head), *map(len, body))
    padded = tuple(f"{text:>{width}}" for text in body)
    return _Column((f"{head:>{width}}", " " * width, " " * width), padded, ("dim",) * len(body))


def markdown_lines(sheet: Sheet) -> list[str]:
    """Title, caption, table, notes and errors of one sheet; best values in bold, column heads on several lines."""
    heads = ["<br>".join(escaped(text) for text in head if text) for head in sheet.heads]
    timed = any(line.evict for line in sheet.lines)
    top = [*map(escaped, sheet.labels), *heads, *(["evict"] if timed else [])]
    rule = [":--"] * len(sheet.labels) + ["--:"] * (len(heads) + timed)
    out = [f"**{escaped(sheet.title)}**", "", escaped(sheet.caption.replace("* best", "bold is best")), ""]
    out += [markdown_line(top), markdown_line(rule)]
    for line in sheet.lines:
        figures = [_markdown_figure(figure) for figure in line.figures]
        out.append(markdown_line([*map(escaped, line.labels), *figures, *([line.evict] if timed else [])]))
    if sheet.notes:
        out += ["", escaped(" ".join(sheet.notes))]
    if sheet.errors:
        out += ["", escaped(sheet.errors[0]), "", *(f"- {escaped(error)}" for error in sheet.errors[1:])]
    return out


def _markdown_figure(figure: Figure) -> str:
    text = escaped(str(figure))
    return f"**{figure.mean}**{text[len(figure.mean) :]}" if figure.best else text
