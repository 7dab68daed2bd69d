"""`kvbench report plot`: one plot of rows, as a figure or in a file."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from kvbench.records.lines import Warn
from kvbench.report.frames import Source
from kvbench.report.plots.canvas import check_file, save, styled
from kvbench.report.plots.request import Request
from kvbench.report.selection import check_where
from kvbench.support.errors import UserError
from kvbench.support.named import Named, member, named
from kvbench.support.text import closest


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
    drawn = kind_of(kind)
    allowed = drawn.keys
    chosen, where = {}, {}
    for key, value in (settings or {}).items():
        if key not in allowed:
            where[key] = [text.strip() for text in value.split(",")]
        elif value not in allowed[key]:
            raise UserError(f"{key}={value}: allowed for {kind}: {key}={'|'.join(allowed[key])}")
        else:
            chosen[key] = value
    check_where(where)
    with styled():
        return drawn.load()(Request(source, where, chosen, warn))


def kind_of(name: str) -> Named:
    """Return a kind of plot. Raises UserError for one that there is not."""
    found = member("plot", name)
    if found is None:
        raise UserError(f"unknown plot {name!r}; {closest(name, named('plot'))}")
    return found
