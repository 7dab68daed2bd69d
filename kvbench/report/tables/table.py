"""`kvbench report table`: one figure per cell of a sweep, with its interval; and the table that a run ends with.

Formats for readers have blocks: one per model, task and context length, in it one line per policy and score, one column
per budget, or whatever a `View` names instead. Those for programs (``LONG``) have one line per cell with all columns of
`kvbench.report.tables.summary.Summary`; ``decode_seconds`` only of cells that were timed and of servers, as others
share their steps.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, get_args

import pyarrow as pa

from kvbench.records.lines import Warn
from kvbench.records.rows import Describe
from kvbench.report.compare.beyond_chance import Mark, survivors
from kvbench.report.formats.emit import write_report
from kvbench.report.formats.table import Report
from kvbench.report.frames import Source
from kvbench.report.report_file import FORMATS as ALL_FORMATS
from kvbench.report.report_file import check_format, check_parquet, file_to
from kvbench.report.rows import describer, load, load_table
from kvbench.report.selection import NothingSelected, Where, conditions, without_full_cache
from kvbench.report.stats.paired import TIMED
from kvbench.report.stats.pass_at import pass_at
from kvbench.report.tables.average import averaged
from kvbench.report.tables.means import means_table
from kvbench.report.tables.pivot import COLUMNS, LINES, arrange, check_keys
from kvbench.report.tables.summary import COLUMNS as SUMMARY_COLUMNS
from kvbench.report.tables.summary import NEEDED, Summary, Unit, summaries, summary_frame
from kvbench.support.errors import UserError

FORMATS = (*ALL_FORMATS, "parquet")
LONG = ("csv", "json", "parquet")
WIDTH = 100
"""Columns of text that does not go to a terminal."""
OVER_CONTEXTS = "Means are over contexts, each with the mean of its questions; n counts questions."


@dataclass(frozen=True)
class View:
    """How cells are laid out and compared.

    ``rows cols``: keys of the lines and columns of a block (`kvbench.report.tables.pivot.KEYS`) with commas between;
    None: the defaults.
    ``against``: a policy, or a selection as of `kvbench compare` ("policy=snapkv,score=attn"); cells that differ from
    it beyond chance are marked. ``average``: one line per setting over the tasks of LongBench, see
    `kvbench.report.tables.average`. ``pass_at``: k of pass@k, over prompts. ``mean_over``: what means are over, where
    several questions are asked about a context. ``triggered``: only prompts in which the method acted, see
    `kvbench.report.acted`.

    Raises ValueError for an unknown key, and for settings that do not go together.
    """

    rows: str | None = None
    cols: str | None = None
    against: str | None = None
    average: str | None = None
    pass_at: int | None = None
    mean_over: Unit = "questions"
    triggered: bool = False

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
        if self.triggered and (self.against, self.average, self.pass_at) != (None, None, None):
            raise UserError(
                "--triggered takes other prompts for every cell: leave out against=, --average and --pass-at; the note "
                "under the table has the full cache's mean on the same prompts"
            )
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
    source: Source,
    format: str,
    out: TextIO | Path,
    view: View | None = None,
    warn: Warn = warnings.warn,
    where: Where | None = None,
) -> None:
    """Write the table of a results folder, a Parquet file or a frame of rows.

    ``where``: which rows, see `kvbench.report.selection`. Text has the columns of the terminal, or ``WIDTH`` if
    ``out`` is none; it is coloured on a terminal only, and not if NO_COLOR is set.

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
    if format not in LONG:
        write_report(report_of(source, view, warn, where), format, out)
        return
    measured = _measured(source, view, warn, where)
    cells = measured if view.average is None else averaged(measured, view.average, describer(source)).lines
    if file is not None:
        with file_to(file) as path:
            summary_frame([_with_own_seconds(cell) for cell in cells]).to_parquet(path, index=False)
        return
    write_report(Report(records=[_record(cell) for cell in cells], columns=SUMMARY_COLUMNS), format, out)


def report_of(
    source: Source, view: View | None = None, warn: Warn = warnings.warn, where: Where | None = None
) -> Report:
    """Return the blocks of a results folder, a Parquet file or a frame of rows. Raises as `print_table`."""
    view, describe = view or View(), describer(source)
    measured = _measured(source, view, warn, where)
    cells, described = (measured, describe) if view.average is None else averaged(measured, view.average, describe)
    marks = {} if view.against is None else _marks(source, where, view.against)
    blocks = arrange(cells, view.line_keys, view.column_keys, described)
    tables = [means_table(block, described, marks, view.against or "", view.triggered) for block in blocks]
    notes = [OVER_CONTEXTS] if view.mean_over == "contexts" else []
    if condition := without_full_cache(where or {}):
        notes.append(f"The selection leaves out the full cache, whose rows have {condition}.")
    return Report(
        warnings=_warnings(measured, describe),
        tables=tuple(replace(table, notes=(*table.notes, *notes)) for table in tables),
        records=[_record(cell) for cell in cells],
        columns=SUMMARY_COLUMNS,
        width=WIDTH,
    )


def report_of_run(
    source: Source, warn: Warn, where: Where | None = None, rows: Callable[[Sequence[str]], pa.Table] | None = None
) -> Report:
    """Return the table that a run ends with. rows: reads these columns of the rows of the run; None: all that `where`
    selects. Raises as `load_table`.
    """
    cells = summaries(load_table(source, NEEDED, warn, where) if rows is None else rows(NEEDED))
    describe = describer(source)
    tables = tuple(means_table(block, describe) for block in arrange(cells, describe=describe))
    records = [_record(cell) for cell in cells]
    return Report(
        warnings=_warnings(cells, describe), tables=tables, records=records, columns=SUMMARY_COLUMNS, width=WIDTH
    )


def _warnings(cells: Sequence[Summary], describe: Describe) -> tuple[str, ...]:
    """Return a warning if anything but time was measured on random weights: their answers mean nothing."""
    cell_of = {cell.model: cell.cell for cell in cells if cell.metric != TIMED}
    parts = {model: (describe(cell) or {}).get("model") for model, cell in cell_of.items()}
    models = ", ".join(model for model, part in parts.items() if isinstance(part, dict) and part.get("shape"))
    text = f"warning: random weights ({models}): accuracy is meaningless here; time and memory are valid"
    return (text,) if models else ()


def _measured(source: Source, view: View, warn: Warn, where: Where | None) -> list[Summary]:
    """Return the selected cells, or one for each of their questions. Raises NothingSelected where no method acted."""
    if view.pass_at is None:
        cells = summaries(load_table(source, NEEDED, warn, where), view.by_question, view.mean_over, view.triggered)
        if view.triggered and not any(cell.acted for cell in cells):
            raise NothingSelected("--triggered: no row says that its method acted on the prompt")
        return cells
    return summaries(pass_at(load(source, warn, where), view.pass_at, describer(source)), view.by_question)


def _marks(source: Source, where: Where | None, against: str) -> dict[str, Mark]:
    """Raise ValueError if no selected row is one of ``against``."""
    rows = load(source, lambda text: None, where)  # its warnings were given already
    selection = conditions(against if "=" in against else f"policy={against}")
    try:
        baselines = {*load_table(source, (), lambda text: None, selection)["cell"].to_pylist()}
    except NothingSelected:
        baselines = set()
    if baselines.isdisjoint(row.cell for row in rows):
        policies = ", ".join(sorted({row.policy for row in rows}))
        raise UserError(f"against={against}: no selected row has it; allowed: policy {policies}")
    try:
        return survivors(rows, lambda row: row.cell in baselines, describe=describer(source))
    except ValueError as error:
        raise UserError(f"against={against}: {error}") from error


def _with_own_seconds(cell: Summary) -> Summary:
    """Return a cell without the seconds of steps that it shared with others."""
    has_own = cell.metric == TIMED or cell.first_token_seconds is not None
    return cell if has_own else replace(cell, decode_seconds=None)


def _record(cell: Summary) -> dict[str, object]:
    """Return all columns, and failed samples by message."""
    cell = _with_own_seconds(cell)
    columns = {name: getattr(cell, name) for name in SUMMARY_COLUMNS}
    return columns | {"failures": cell.failures, "blank_samples": cell.blank_samples}
