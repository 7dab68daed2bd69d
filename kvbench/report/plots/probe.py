"""Pictures of a probe's numbers: a heat-map of layers and heads, or means with intervals against layer or window."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvbench.report.plots.canvas import (
    COLOURS,
    DASHES,
    MARKERS,
    has_bottom,
    is_first,
    legend_at,
    panels,
    save,
    stamped,
    styled,
    titles,
    write_numbers,
)
from kvbench.report.tables.probe import ASKED, Line, lines_of
from kvbench.support.errors import UserError

_WRITTEN = 150  # squares of a heat-map up to which each has its number


def draw_probed(numbers: pa.Table, by: Sequence[str], out: Path, stamp: str = "") -> None:
    """Draw the means of `print_probed` into a file (PDF, PNG or SVG by its name), with a word in its corner.

    Kept apart by head, a probe is a heat-map, one a cell; else a line a cell over windows, or over layers. Raises
    ValueError where there is nothing to draw.
    """
    names = [*ASKED, *dict.fromkeys([*by, "quantity"])]
    lines = [line for line in lines_of(numbers, by) if line.mean is not None]
    if not lines:
        raise UserError("there are no numbers to draw")
    told = [dict(zip(names, line.keys, strict=True)) for line in lines]
    with styled():
        figure = _heat(lines, told) if "head" in by and "layer" in by else _curves(lines, told)
        save(stamped(figure, stamp) if stamp else figure, out)


def _heat(lines: Sequence[Line], told: Sequence[dict[str, Any]]) -> Figure:
    """Layers from top to bottom, heads from left to right, each panel with a scale of its own."""
    panel = ("model", "task", "context_length", "policy", "score", "budget", "quantity")
    grids: dict[tuple[Any, ...], list[tuple[Line, dict[str, Any]]]] = {}
    for line, keys in zip(lines, told, strict=True):
        grids.setdefault(tuple(keys[name] for name in panel), []).append((line, keys))
    said, own = titles([dict(zip(panel, key, strict=True)) for key in grids])
    layers, heads = (sorted({keys[name] for keys in told}) for name in ("layer", "head"))
    figure, axes = panels(
        own,
        f"{told[0]['probe']}, {said}\n{_counted(lines)}",
        width=1.3 + max(0.3 * len(heads), 1.2),
        height=0.85 + max(0.16 * len(layers), 0.9),
        margin=0.3,
    )
    for axis, found in zip(axes, grids.values(), strict=True):
        grid = np.full((len(layers), len(heads)), np.nan)
        for line, keys in found:
            grid[layers.index(keys["layer"]), heads.index(keys["head"])] = line.mean
        shown = axis.imshow(grid, aspect="auto", interpolation="none")
        write_numbers(shown, grid, _WRITTEN)
        axis.grid(visible=False)
        for set_ticks, values in ((axis.set_xticks, heads), (axis.set_yticks, layers)):
            step = -(-len(values) // 12)
            set_ticks(range(0, len(values), step), [str(value) for value in values[::step]])
        axis.set_ylabel("layer" if is_first(axis) else "")
        axis.set_xlabel("stored head" if has_bottom(axis) else "")
        figure.colorbar(shown, ax=axis, shrink=0.9)
    return figure


def _curves(lines: Sequence[Line], told: Sequence[dict[str, Any]]) -> Figure:
    """One panel a quantity, number of recent tokens and model; one line a policy, score and budget."""
    x = next((name for name in ("window", "layer") if name in told[0]), None)
    if x is None:
        raise UserError("a picture needs --by window, --by layer or --by layer,head")
    panel = [name for name in ("model", "task", "context_length", "quantity", "recent", "head") if name in told[0]]
    grids: dict[tuple[Any, ...], list[tuple[Line, dict[str, Any]]]] = {}
    for line, keys in zip(lines, told, strict=True):
        grids.setdefault(tuple(keys[name] for name in panel), []).append((line, keys))
    said, own = titles([dict(zip(panel, key, strict=True)) for key in grids])
    cells = list(dict.fromkeys(_cell(keys) for keys in told))
    common = titles([dict(zip(("policy", "score", "budget"), cell, strict=True)) for cell in cells])
    bars = ", bars are 95 % intervals" * any(line.low is not None for line in lines)
    figure, axes = panels(
        own,
        f"{told[0]['probe']}, {', '.join(filter(None, (said, common[0])))}\n{_counted(lines)}{bars}",
        margin=1.9 if len(cells) > 1 else 0.4,
        sharey=len({one["quantity"] for one in told}) == 1,
    )
    for axis, found in zip(axes, grids.values(), strict=True):
        for place, cell in enumerate(cells):
            part = sorted(((keys[x], line) for line, keys in found if _cell(keys) == cell), key=lambda one: one[0])
            if part:
                axis.errorbar(
                    [at for at, _ in part],
                    [float(line.mean or 0) for _, line in part],  # lines without a mean are left out above
                    yerr=_bars([line for _, line in part]),
                    capsize=2,
                    elinewidth=0.6,
                    **_mark(place),
                )
        if x == "window":
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("rows that vote" if x == "window" else "layer")
        axis.set_ylabel(str(found[0][1]["quantity"]) if is_first(axis) else "")
    handles = [Line2D([], [], label=name, **_mark(place)) for place, name in enumerate(common[1])]
    if len(handles) > 1:
        figure.legend(handles=handles, handlelength=2.6, **legend_at(figure, 1.9))
    return figure


def _counted(lines: Sequence[Line]) -> str:
    most = max(line.n for line in lines)
    return f"means of n = {most} samples" if most > 1 else "n = 1 sample"


def _cell(keys: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(keys[name] for name in ("policy", "score", "budget"))


def _mark(place: int) -> dict[str, Any]:
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[(place + 3 * (place // len(COLOURS))) % len(MARKERS)],
        "linestyle": DASHES[(place // len(COLOURS)) % len(DASHES)],
    }


def _bars(lines: Sequence[Line]) -> np.ndarray[Any, Any] | None:
    """[2, lines]: how far intervals reach below and above the means, 0 where there is none."""
    reach = [
        (0.0, 0.0)
        if line.mean is None or line.low is None or line.high is None
        else (line.mean - line.low, line.high - line.mean)
        for line in lines
    ]
    return np.maximum(np.array(reach).T, 0)
