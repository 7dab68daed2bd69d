"""`kvbench report plot`: one plot of rows, as a figure or in a file; the request for it, and its words about cells."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from kvbench.records.lines import Warn
from kvbench.report.frames import Source
from kvbench.report.plots.canvas import Marks, check_file, n_of, save, styled
from kvbench.report.rows import describer, load_table
from kvbench.report.selection import NothingSelected, Where, check_where, without_full_cache
from kvbench.report.tables.pivot import COLUMNS, LINES, Block, MeansRow, arrange
from kvbench.report.tables.summary import NEEDED, Summary, summaries
from kvbench.report.tables.usual_values import unsaid_settings
from kvbench.support.errors import UserError
from kvbench.support.named import Named, member, named
from kvbench.support.text import closest, printable


@dataclass(frozen=True)
class Request:
    """``source``: the rows; ``where``: which of them; ``settings``: of the kind, checked."""

    source: Source
    where: Where
    settings: Mapping[str, str]
    warn: Warn

    def cells(self, by_question: bool = False) -> list[Summary]:
        """Return selected cells, or one for each of their questions. Raises NothingSelected if no cell has a value."""
        cells = summaries(load_table(self.source, NEEDED, self.warn, self.where), by_question)
        valued = [cell for cell in cells if cell.mean is not None]
        if not valued:
            failed = sum(cell.errors for cell in cells)
            raise NothingSelected(
                f"no row of {len(cells)} cells has a value; {failed} failed, see `kvbench report table`"
            )
        if len(valued) < len(cells):
            self.warn(f"{len(cells) - len(valued)} of {len(cells)} cells have no value and are left out")
        return valued

    def blocks(self, rows: Sequence[str] = LINES, cols: Sequence[str] = COLUMNS) -> list[Block]:
        """Return the selected cells as `kvbench.report.tables.pivot.arrange` lays them out."""
        return arrange(self.cells("question_number" in cols), rows, cols, describer(self.source))

    @property
    def left_out(self) -> str:
        """Words of a heading that say how to select the full cache, if the selection leaves it out."""
        condition = without_full_cache(self.where)
        return f"; without the full cache, whose rows have {condition}" if condition else ""

    def unsaid_settings(self, methods: Iterable[tuple[str, str | None, str | None]]) -> str:
        """Return the line of a heading about settings that labels leave out, if there are any; methods: as of
        `kvbench.report.tables.usual_values.unsaid_settings`.
        """
        text = unsaid_settings(methods, describer(self.source))
        return f"\n{text}" if text else ""


def plot(
    kind: str,
    source: Source,
    out: str | os.PathLike[str] | None,
    settings: Mapping[str, str] | None = None,
    warn: Warn = warnings.warn,
) -> None:
    """Draw `figure` into the file ``out`` (PDF, PNG or SVG, by its suffix).

    Raises as `figure`, and ValueError for another type of file; then no file is written.
    """
    kind_of(kind)
    file = check_file(None if out is None else Path(out))
    with styled():
        save(figure(kind, source, settings, warn), file)


def figure(kind: str, source: Source, settings: Mapping[str, str] | None = None, warn: Warn = warnings.warn) -> Figure:
    """Return the plot ``kind`` of a results folder, a Parquet file or a frame.

    ``settings``: of the kind, by name. Every other entry selects rows; its values are separated by commas.

    Raises ValueError for an unknown kind or setting, FileNotFoundError if there are no rows, curves or kept sets,
    NothingSelected if no row is selected or no selected row has a value.
    """
    plot_kind = kind_of(kind)
    allowed = plot_kind.keys
    kind_settings, where = {}, {}
    for key, value in (settings or {}).items():
        if key not in allowed:
            where[key] = [text.strip() for text in value.split(",")]
        elif value not in allowed[key]:
            raise UserError(f"{key}={value}: allowed for {kind}: {key}={'|'.join(allowed[key])}")
        else:
            kind_settings[key] = value
    check_where(where)
    with styled():
        return plot_kind.load()(Request(source, where, kind_settings, warn))


def kind_of(name: str) -> Named:
    """Return a kind of plot. Raises UserError for one that there is not."""
    target = member("plot", name)
    if target is None:
        fault = f"unknown plot {name!r}" if name else "a plot has a kind: kvbench report plot KIND --out FILE"
        raise UserError(f"{fault}; {closest(name, named('plot'))}")
    return target


def cells_of(blocks: Sequence[Block]) -> list[Summary]:
    """Return all cells, with references, once per block."""
    return [cell for block in blocks for reference in (True, False) for cell in block.cells(reference)]


def methods_of(cells: Iterable[Summary]) -> list[tuple[str, str, str | None]]:
    """Return each cell with the labels of its policy and its score."""
    return [(cell.cell, cell.policy, cell.score) for cell in cells]


def scaled(cell: Summary, value: float | None) -> float:
    """Return a mean in the unit of the figure: rates in %."""
    assert value is not None
    return 100 * value if cell.rate else value


def metric_of(cells: Sequence[Summary]) -> str:
    """Return the metrics on the axis of means, with their units."""
    return printable(", ".join(dict.fromkeys(f"{cell.metric or 'value'}{' (%)' * cell.rate}" for cell in cells)))


def measured_of(cells: Sequence[Summary], intervals: bool = True) -> str:
    """Return the number of samples behind the means, and the meaning of bands if there are any."""
    lower = "" if all(cell.higher for cell in cells) else "; lower is better"
    failed = sum(cell.errors for cell in {cell.cell: cell for cell in cells}.values())
    intervals = intervals and any(cell.low is not None for cell in cells)
    words = f"means of {n_of({cell.n for cell in cells})}" + ", 95 % intervals" * intervals + lower
    return words + (f"; {failed} failed rows are left out" if failed else "")


def label_of(line: MeansRow) -> tuple[str, str]:
    """Return the first label of a line, its policy, and the others, as text."""
    policy, *others = ("" if label is None else printable(str(label)) for label in line.labels)
    return policy, " ".join(filter(None, others))


def marks_of(blocks: Sequence[Block], alone: bool = False) -> Marks:
    """Return marks for the lines of all blocks, in the order in which they appear."""
    return Marks.over([label_of(line) for block in blocks for line in block.lines if not line.reference], alone)
