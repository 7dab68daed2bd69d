"""`kvbench report plot latency`: seconds or bytes against context length, one panel per batch size.

As in OBCache's Figures 5 and 6 and LAVa's Figure 3.
"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullFormatter

from kvbench.extras.efficiency.report import STEP, Timed, timed_cells
from kvbench.report.experiments import Experiments
from kvbench.report.plots.canvas import Marks, n_of, titles
from kvbench.report.plots.curves import Panel, Trace, draw_curves
from kvbench.report.plots.plot import Request
from kvbench.report.rows import describer
from kvbench.report.selection import NothingSelected
from kvbench.support.grouped import grouped
from kvbench.support.quantity import duration, size

QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "step": (STEP,),
    "first_token": ("first_token_seconds",),
    "prefill": ("prefill_seconds",),
    "held": ("held_bytes",),
    "peak": ("decode_peak_bytes", "decode_bytes"),
    "both": (STEP, "held_bytes"),
}
LABELS = {
    STEP: "a step",
    "first_token_seconds": "to the first token",
    "prefill_seconds": "reading",
    "held_bytes": "bytes of keys and values held",
    "decode_peak_bytes": "peak while decoding",
    "decode_bytes": "caches while decoding",
}


def draw(request: Request) -> Figure:
    """Medians with quartiles. Raises NothingSelected if no cell has the quantity, and as `timed_cells` does."""
    cells = [cell for cell in timed_cells(request.source, request.warn, request.where) if cell.error is None]
    y = request.settings.get("y", "both")
    names = [name for name in QUANTITIES[y] if any(name in cell.quantities for cell in cells)]
    names = names if y == "both" else names[:1]
    if not names:
        raise NothingSelected(f"no timed cell has {' or '.join(QUANTITIES[y])}")
    groups = grouped(cells, lambda cell: (cell.columns["model"], cell.batch))
    evicting = [cell.columns for cell in cells if cell.columns["policy"] != "full"]
    several = len({(columns["budget"], columns["schedule"]) for columns in evicting}) + (len(evicting) < len(cells)) > 1

    def short(cell: Timed) -> tuple[str, str]:
        columns = cell.columns
        if columns["policy"] == "full":
            return "full", ""
        return columns["policy"], " ".join(filter(None, (columns["score"], columns["budget"] if several else "")))

    experiments = Experiments(("context_length", "model", "task.batch"), describer(request.source))
    words = experiments.told_apart({cell.cell: short(cell) for cell in cells})

    def label(cell: Timed) -> tuple[str, str]:
        policy, others = short(cell)
        return policy, " ".join(filter(None, (others, words[cell.cell])))

    marks = Marks.over(map(label, cells))
    places = [(name, key) for name in names for key in groups]
    common, panel_titles = titles([{"model": model, "batch": batch} for _, (model, batch) in places])
    counts = {spread.n for cell in cells for name in names if (spread := cell.quantities.get(name))}
    note = f"medians and quartiles; {cells[0].new_tokens} new tokens; {n_of(counts, 'repetition')}"
    note += request.unsaid_settings((cell.cell, cell.columns["policy"], cell.columns["score"]) for cell in cells)

    def traces(name: str, key: tuple[str, int]) -> list[Trace]:
        members = [cell for cell in groups[key] if name in cell.quantities]
        members.sort(key=lambda cell: cell.columns["context_length"])
        return [
            Trace([(cell.columns["context_length"], *cell.quantities[name][:3]) for cell in line], marks.of(named))
            for named, line in grouped(members, label).items()
        ]

    lengths = sorted({cell.columns["context_length"] for cell in cells})

    def scale(axes: Sequence[Axes]) -> None:
        for axis, (name, _) in zip(axes, places, strict=True):
            _scale(axis, name, lengths, request.settings.get("scale") == "log")

    return draw_curves(
        heading=f"{common}\n{note}",
        panels=[
            Panel(title, traces(name, key), "tokens of context", LABELS[name])
            for title, (name, key) in zip(panel_titles, places, strict=True)
        ],
        labels=marks.names,
        scale=scale,
        columns=len(groups),
        sharex=True,
        sharey="row",
    )


def _scale(axis: Axes, name: str, lengths: Sequence[int], logarithmic: bool) -> None:
    axis.set_yscale("log" if logarithmic else "linear")  # replaces locators and formatters, so it comes first
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.minorticks_off()
    words = duration if name.endswith("seconds") else size
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words([value]) if value > 0 else "0"))
    if logarithmic:
        axis.yaxis.set_major_locator(LogLocator(2) if name.endswith("bytes") else LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_ylim(bottom=0)
        if name.endswith("bytes"):
            axis.yaxis.set_major_locator(MultipleLocator(2 ** math.floor(math.log2(axis.get_ylim()[1] / 4))))
