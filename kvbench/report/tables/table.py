"""`kvbench report table`: one figure per cell of a sweep, with its interval.

``text``, ``markdown`` and ``latex`` are blocks: one per model, task and context length, in it one line per policy and
score, one column per budget, or whatever a `View` names instead. ``csv``, ``json`` and ``parquet`` (``LONG``) have one
line per cell with all columns of `kvbench.report.tables.summary.Summary`; ``decode_seconds`` only of cells that were
timed, as others share their steps.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, get_args

import pyarrow as pa

from kvbench.report.compare.compare import Mark, survivors
from kvbench.report.output import check_format, check_parquet, file_to, text_to
from kvbench.report.rows import Warn, describer, load, load_table
from kvbench.report.selection import Describe, NothingSelected, Where, conditions
from kvbench.report.stats.drawn import pass_at
from kvbench.report.stats.paired import TIMED
from kvbench.report.tables import grid
from kvbench.report.tables.average import averaged
from kvbench.report.tables.latex import latex_text
from kvbench.report.tables.pivot import COLUMNS, LINES, arrange, check_keys
from kvbench.report.tables.sheet import Figure, Sheet, sheet
from kvbench.report.tables.summary import COLUMNS as SUMMARY_COLUMNS
from kvbench.report.tables.summary import NEEDED, Summary, Unit, frame_of, summaries
from kvbench.support.errors import UserError
from kvbench.support.text import printable, wrapped

FORMATS = ("text", "markdown", "latex", "csv", "json", "parquet")
LONG = ("csv", "json", "parquet")
WIDTH = 100  # of text that does not go to a terminal
"""The metric of `task=efficiency`, whose cells decode alone."""
OVER_CONTEXTS = "Means are over contexts, each with the mean of its questions; n counts questions."


@dataclass(frozen=True)
class View:
    """How cells are laid out and compared.

    ``rows cols``: keys of the lines and columns of a block (`kvbench.report.tables.pivot.KEYS`) with commas between;
    None: the defaults.
    ``against``: a policy, or a selection as of `kvbench compare` ("policy=snapkv,score=attn"); cells that differ from
    it beyond chance are marked. ``average``: one line per setting over the tasks of LongBench, see
    `kvbench.report.tables.average`. ``pass_at``: k of pass@k, over prompts. ``mean_over``: what means are over, where
    several questions are asked about a context.

    Raises ValueError for an unknown key, and for settings that do not go together.
    """

    rows: str | None = None
    cols: str | None = None
    against: str | None = None
    average: str | None = None
    pass_at: int | None = None
    mean_over: Unit = "questions"

    def __post_init__(self) -> None:
        check_keys(self.line_keys, self.column_keys)
        if self.by_question and (self.against, self.average) != (None, None):
            setting = "against= compares" if self.average is None else "--average takes"
            raise UserError(f"{setting} complete cells: remove question_number from rows= and cols=, or do without it")
        if self.against is not None and self.average is not None:
            raise UserError(
                "--average and against= do not go together: against= marks cells of single tasks; leave one of them out"
            )
        if self.pass_at is not None and (self.against, self.average) != (None, None):
            raise UserError("--pass-at goes without --average and against=; kvbench compare --pass-at compares")
        if self.mean_over not in get_args(Unit):
            raise UserError(f"--mean-over {self.mean_over}: allowed: {', '.join(get_args(Unit))}")
        if self.mean_over == "contexts" and (
            self.by_question or (self.against, self.average, self.pass_at) != (None, None, None)
        ):
            raise UserError(
                "--mean-over contexts takes the questions of a context together: leave out against=, --average, "
                "--pass-at and question_number"
            )

    @property
    def line_keys(self) -> tuple[str, ...]:
        """``rows``, or the defaults that ``cols`` does not name."""
        return _keys(self.rows, LINES, self.cols)

    @property
    def column_keys(self) -> tuple[str, ...]:
        """``cols``, or the defaults that ``rows`` does not name."""
        return _keys(self.cols, COLUMNS, self.rows)

    @property
    def by_question(self) -> bool:
        """Whether the questions of a cell stand apart."""
        return "question_number" in (*self.line_keys, *self.column_keys)


def _keys(text: str | None, defaults: Sequence[str], others: str | None) -> tuple[str, ...]:
    named = [key.strip() for key in (others or "").split(",")]
    keys = [key for key in defaults if key not in named] if text is None else map(str.strip, text.split(","))
    return tuple(filter(None, keys))


def print_table(
    folder: str | os.PathLike[str],
    format: str,
    out: TextIO | Path,
    view: View | None = None,
    warn: Warn = warnings.warn,
    where: Where | None = None,
    width: int | None = None,
) -> None:
    """Write the table of a results folder, or of a Parquet file of rows.

    ``where``: which rows, see `kvbench.report.selection`. ``width``: columns of text; by default those of the terminal,
    or ``WIDTH`` if ``out`` is none. Text is coloured on a terminal only, and not if NO_COLOR is set.

    Raises ValueError for an unknown format or policy, FileNotFoundError if there are no rows, NothingSelected if none
    is selected.
    """
    view = view or View()
    check_format(format, FORMATS)
    if format in LONG and (view.rows, view.cols, view.against) != (None, None, None):
        blocks = "|".join(name for name in FORMATS if name not in LONG)
        named = "rows= and cols=" if view.against is None else "against="
        raise UserError(f"--format {format} has one line per cell; leave {named} out, or choose --format {blocks}")
    file = check_parquet(out) if format == "parquet" else None
    describe = describer(folder)
    if view.pass_at is None:
        measured = summaries(load_table(folder, NEEDED, warn, where), view.by_question, view.mean_over)
    else:
        measured = summaries(pass_at(load(folder, warn, where), view.pass_at, describe), view.by_question)
    cells = measured if view.average is None else averaged(measured, view.average)
    if format in LONG:
        cells = [cell if cell.metric == TIMED else replace(cell, decode_seconds=None) for cell in cells]
    if file is not None:
        file_to(file, lambda path: frame_of(cells).to_parquet(path, index=False))
        return
    if format in LONG:
        with text_to(out) as stream:
            grid.write_items([_item(cell) for cell in cells], format, stream, SUMMARY_COLUMNS)
        return
    marks = {} if view.against is None else _marks(folder, where, view.against)
    blocks = arrange(cells, view.line_keys, view.column_keys, describe)
    sheets = [sheet(block, describe, marks, view.against or "") for block in blocks]
    if view.mean_over == "contexts":
        sheets = [replace(part, notes=(*part.notes, OVER_CONTEXTS)) for part in sheets]
    _write_sheets(sheets, format, out, width, _of_random_weights(measured, describe))


def print_table_of(rows: pa.Table, folder: str | os.PathLike[str], out: TextIO) -> None:
    """Write the text table of rows that were read from `folder` already."""
    cells, describe = summaries(rows), describer(folder)
    sheets = [sheet(block, describe) for block in arrange(cells, describe=describe)]
    _write_sheets(sheets, "text", out, warning=_of_random_weights(cells, describe))


def _of_random_weights(cells: Sequence[Summary], describe: Describe) -> str:
    """A warning if anything but time was measured on random weights, whose answers are as random."""
    cell_of = {cell.model: cell.cell for cell in cells if cell.metric != TIMED}
    parts = {model: (describe(cell) or {}).get("model") for model, cell in cell_of.items()}
    models = ", ".join(model for model, part in parts.items() if isinstance(part, dict) and part.get("shape"))
    return (
        f"warning: random weights ({models}): accuracy is meaningless here; time and memory are valid" if models else ""
    )


def _marks(folder: str | os.PathLike[str], where: Where | None, against: str) -> dict[str, Mark]:
    """Raises ValueError if no selected row is one of ``against``."""
    rows = load(folder, lambda text: None, where)  # its warnings were given already
    selection = conditions(against if "=" in against else f"policy={against}")
    try:
        baselines = {*load_table(folder, (), lambda text: None, selection)["cell"].to_pylist()}
    except NothingSelected:
        baselines = set()
    if baselines.isdisjoint(row.cell for row in rows):
        policies = ", ".join(sorted({row.policy for row in rows}))
        raise UserError(f"against={against}: no selected row has it; allowed: policy {policies}")
    try:
        return survivors(rows, lambda row: row.cell in baselines)
    except ValueError as error:
        raise UserError(f"against={against}: {error}") from error


def _item(cell: Summary) -> dict[str, object]:
    """All columns, and failed samples by message."""
    columns = {name: getattr(cell, name) for name in SUMMARY_COLUMNS}
    return columns | {"failures": cell.failures, "blank_samples": cell.blank_samples}


def _write_sheets(
    sheets: Sequence[Sheet], format: str, out: TextIO | Path, width: int | None = None, warning: str = ""
) -> None:
    with text_to(out) as stream:
        if warning:
            mark = {"markdown": "> ", "latex": "% "}.get(format, "")
            stream.write(f"{mark}{printable(warning)}\n\n")
        if format == "markdown":
            stream.write("\n\n".join("\n".join(markdown_lines(part)) for part in sheets) + "\n")
        elif format == "latex":
            stream.write("\n\n".join(latex_text(part) for part in sheets) + "\n")
        else:
            print_sheets(sheets, stream, width)


def print_sheets(sheets: Sequence[Sheet], out: TextIO, width: int | None = None, without: int = WIDTH) -> None:
    """Print sheets as text of ``width`` columns; by default those of the terminal, ``without`` one that many."""
    console = grid.plain_console(out)
    width = width or (console.width if console.is_terminal else without)
    for number, part in enumerate(sheets):
        grid.print_lines([*([[("", "")]] if number else []), *text_lines(part, width)], console)


def markdown_lines(sheet: Sheet) -> list[str]:
    """Title, caption, table, notes and errors of one sheet; best values in bold, column heads on several lines."""
    timed = any(line.evict for line in sheet.lines)
    heads = ["<br>".join(grid.escaped(text) for text in head if text) for head in sheet.heads]
    table = grid.markdown_table(
        [*map(grid.escaped, sheet.labels), *heads, *(["evict"] if timed else [])],
        *(
            [*map(grid.escaped, line.labels), *map(_markdown_figure, line.figures), *([line.evict] if timed else [])]
            for line in sheet.lines
        ),
        align="l" * len(sheet.labels) + "r" * (len(heads) + timed),
    )
    caption = grid.escaped(sheet.caption.replace("* best", "bold is best"))
    out = [f"**{grid.escaped(sheet.title)}**", "", *([caption, ""] if caption else []), *table]
    if sheet.notes:
        out += ["", grid.escaped(" ".join(sheet.notes))]
    if sheet.errors:
        out += ["", grid.escaped(sheet.errors[0]), "", *(f"- {grid.escaped(error)}" for error in sheet.errors[1:])]
    return out


def _markdown_figure(figure: Figure) -> str:
    text = grid.escaped(str(figure))
    return f"**{figure.mean}**{text[len(figure.mean) :]}" if figure.best else text


def text_lines(sheet: Sheet, width: int) -> list[list[grid.Span]]:
    """The lines of one sheet, none longer than ``width`` unless a single column is; spans of text with their style."""

    def folded(text: str, style: str, first: str = "", others: str = "") -> list[list[grid.Span]]:
        return [[(line, style)] for line in wrapped(first + printable(text), width, others)]

    columns = [_figures(sheet, i) for i in range(len(sheet.heads))]
    evict = [line.evict for line in sheet.lines]
    columns += [grid.Column(("evict", "", ""), evict, ">", ["dim"] * len(evict))] if any(evict) else []
    out = [*folded(sheet.title, "bold"), *folded(sheet.caption, ""), [("", "")]]
    out += grid.text_grid([_labels(sheet)], columns, width, sheet.groups, (0, *sheet.rules))
    if sheet.notes or sheet.errors:
        out.append([("", "")])
    out += [line for note in sheet.notes for line in folded(note, "dim")]
    for i, error in enumerate(sheet.errors):
        out += folded(error, "red", "  " if i else "", "    ")
    return out


def _labels(sheet: Sheet) -> grid.Column:
    """All labels in one column. A label with nothing to its right may run over its neighbours' place."""
    table = [[*map(printable, labels)] for labels in (sheet.labels, *(line.labels for line in sheet.lines))]
    widths = [
        max((len(labels[i]) for labels in table if any(labels[i + 1 :])), default=0) for i in range(len(sheet.labels))
    ]
    head, *body = ["  ".join(f"{label:{widths[i]}}" for i, label in enumerate(labels)).rstrip() for labels in table]
    return grid.Column((head, "", ""), body)


def _figures(sheet: Sheet, index: int) -> grid.Column:
    """Means, stars, intervals and notes each aligned among themselves, as a whole to the right."""
    figures = [line.figures[index] for line in sheet.lines]
    star = any(figure.best for line in sheet.lines for figure in line.figures)
    mean, low, high, note = (
        max(len(getattr(figure, name)) for figure in figures) for name in ("mean", "low", "high", "note")
    )

    def aligned(figure: Figure) -> str:
        if not figure.mean:
            return figure.note.rjust(mean + star)
        between = f"[{figure.low:>{low}},{figure.high:>{high}}]" if figure.low else " " * (low + high + 3 if low else 0)
        text = f"{figure.mean:>{mean}}" + (("*" if figure.best else " ") if star else "")
        return f"{text} {between} {figure.note:<{note}}".rstrip() if note else f"{text} {between}".rstrip()

    body = [aligned(figure) for figure in figures]
    inner = max(map(len, body))
    styles = [
        "dim" if line.reference else "bold green" if figure.best else "red" if figure.note and not figure.mean else ""
        for line, figure in zip(sheet.lines, figures, strict=True)
    ]
    return grid.Column([*map(printable, sheet.heads[index])], [f"{text:{inner}}" for text in body], ">", styles)
