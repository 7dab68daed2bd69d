"""`kvbench report plot latency`: seconds or bytes against the length of the context, a panel a batch, as OBCache's
Figures 5 and 6 and LAVa's Figure 3 have it.
"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullFormatter

from kvbench.report.plots.canvas import Marks, has_bottom, is_first, n_of, panels, titles
from kvbench.report.plots.request import Request
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.efficiency import STEP, Timed, timed_cells
from kvbench.report.tables.pivot import Line
from kvbench.support.quantity import duration, size

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "y": ("step", "first_token", "prefill", "held", "peak", "both"),
    "scale": ("linear", "log"),
}
QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "step": (STEP,),
    "first_token": ("first_token_seconds",),
    "prefill": ("prefill_seconds",),
    "held": ("held_bytes",),
    "peak": ("decode_peak_bytes", "decode_bytes"),
    "both": (STEP, "held_bytes"),
}
MARGIN = 1.9
"""Inches for the legend, whose policies are named with their settings."""
WORDS = {
    STEP: "a step",
    "first_token_seconds": "to the first token",
    "prefill_seconds": "reading",
    "held_bytes": "keys and values held",
    "decode_peak_bytes": "peak while decoding",
    "decode_bytes": "caches while decoding",
}


def draw(asked: Request) -> Figure:
    """Medians with quartiles. Raises NothingSelected where no cell has what is asked for, and as `timed_cells`."""
    cells = [cell for cell in timed_cells(asked.results, asked.warn, asked.where) if cell.error is None]
    y = asked.settings.get("y", "both")
    names = [name for name in QUANTITIES[y] if any(name in cell.quantities for cell in cells)]
    names = names if y == "both" else names[:1]
    if not names:
        raise NothingSelected(f"no timed cell has {' or '.join(QUANTITIES[y])}")
    groups: dict[tuple[object, ...], list[Timed]] = {}
    for cell in cells:
        groups.setdefault((cell.asked["model"], cell.batch), []).append(cell)
    several = len({_settings(cell) for cell in cells}) > 1
    lines = list(dict.fromkeys(_label(cell, several) for cell in cells))
    firsts, others = (tuple(dict.fromkeys(one)) for one in zip(*lines, strict=True))
    marks = Marks(firsts, others)
    shown = [(name, key) for name in names for key in groups]
    said, own = titles([{"model": model, "batch": batch} for _, (model, batch) in shown])
    counts = {spread.n for cell in cells for name in names if (spread := cell.quantities.get(name))}
    steps = next((cell.new_tokens for cell in cells), 0)
    note = f"medians and quartiles; {steps} new tokens; {n_of(counts, 'repetition')}"
    figure, axes = panels(own, f"{said}\n{note}", columns=len(groups), margin=MARGIN, sharex=True)
    for axis, (name, key) in zip(axes, shown, strict=True):
        logarithmic = asked.settings.get("scale") == "log"
        axis.set_yscale("log" if logarithmic else "linear")  # takes locators and formatters with it: first
        _panel(axis, name, groups[key], marks, several)
        if logarithmic:
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_minor_formatter(NullFormatter())
        else:
            axis.set_ylim(bottom=0)
            if name.endswith("bytes"):
                axis.yaxis.set_major_locator(MultipleLocator(2 ** math.floor(math.log2(axis.get_ylim()[1] / 4))))
        axis.set_ylabel(WORDS[name] if is_first(axis) else "")
        axis.set_xlabel("tokens of context" if has_bottom(axis) else "")
    marks.legend(figure, ["policy", "score, budget"], False, MARGIN)
    return figure


def _panel(axis: Axes, name: str, cells: Sequence[Timed], marks: Marks, several: bool) -> None:
    ends: dict[tuple[str, str], list[tuple[int, Timed]]] = {}
    for cell in cells:
        if name in cell.quantities:
            ends.setdefault(_label(cell, several), []).append((cell.asked["context_length"], cell))
    ticks = sorted({length for points in ends.values() for length, _ in points})
    for label, points in ends.items():
        points.sort(key=lambda point: point[0])
        found = [cell.quantities[name] for _, cell in points]
        drawn = marks.of(Line(label, False))
        xs = [length for length, _ in points]
        axis.plot(xs, [one.median for one in found], **drawn)
        low, high = [one.low for one in found], [one.high for one in found]
        axis.fill_between(xs, low, high, color=drawn["color"], alpha=0.13, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    words = duration if name.endswith("seconds") else size
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words([value]) if value > 0 else "0"))


def _settings(cell: Timed) -> tuple[object, ...]:
    full = cell.asked["policy"] == "full"
    return () if full else (cell.asked["budget"], cell.asked["schedule"])


def _label(cell: Timed, several: bool) -> tuple[str, str]:
    asked = cell.asked
    if asked["policy"] == "full":
        return "full", ""
    other = " ".join(filter(None, (asked["score"], asked["budget"] if several else "")))
    return asked["policy"], other
