"""`kvbench report plot kept`: where in the text the pairs stood that stayed, a line a stored head, a panel a cell."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from kvbench.report.plots.canvas import has_bottom, is_first, panels
from kvbench.report.plots.heads import Panel, counted, cut_panels
from kvbench.report.plots.request import Request
from kvbench.report.tables.where import NothingSelected

SETTINGS: Mapping[str, tuple[str, ...]] = {}
BINS = 128  # over the text, where it has more positions or several texts lie over each other


def draw(asked: Request) -> Figure:
    """Dark stayed. Several samples lie over each other by their relative position; `sample=0` shows one alone.

    Raises as `kvbench.report.plots.heads.cut_panels` does, and NothingSelected where runs recorded counts only.
    """
    chosen = asked.where.get("sample")
    said, shown = cut_panels(asked, [int(one) for one in chosen if one.isdigit()] if chosen else None)
    shown = [panel for panel in shown if all(one.masks is not None for one in panel.sets)]
    if not shown:
        raise NothingSelected("kept sets hold counts only, no positions: run with results.kept=positions")
    layers = [len(layer) for layer in shown[0].sets[0].lengths]
    most = max(sum(map(len, panel.sets[0].lengths)) for panel in shown)
    heading = f"{said}\npairs that stayed, {counted(shown)}; a line a stored head, layer 0 on top"
    figure, axes = panels(
        [panel.title for panel in shown],
        heading,
        height=0.65 + max(0.06 * most, 0.9),
        margin=0.9,
        sharex=True,
        sharey=True,
    )
    picture = None
    for axis, panel in zip(axes, shown, strict=True):
        shares = stayed(panel)
        picture = axis.imshow(
            shares, aspect="auto", vmin=0, vmax=1, cmap="Greys", extent=(0, 100, len(shares), 0), interpolation="none"
        )
        axis.grid(visible=False)
        for edge in np.cumsum(layers)[:-1]:
            axis.axhline(edge, color="#0072B2", linewidth=0.5)
        axis.set_yticks(np.cumsum(layers) - np.array(layers) / 2, [str(layer) for layer in panel.sets[0].layers])
        axis.set_ylabel("layer" if is_first(axis) else "")
        axis.set_xlabel("position (% of what was read)" if has_bottom(axis) else "")
    width = figure.get_size_inches()[0]
    assert picture is not None
    figure.colorbar(
        picture, cax=figure.add_axes((1 - 0.75 / width, 0.25, 0.12 / width, 0.45)), label="share that stayed"
    )
    return figure


def stayed(panel: Panel) -> np.ndarray:
    """[heads, bins]: the share of pairs that stayed, mean over samples; a bin a position for one short sample."""
    bins = min(BINS, min(one.seen for one in panel.sets))
    if len(panel.sets) == 1 and panel.sets[0].seen <= 4 * BINS:
        bins = panel.sets[0].seen
    heads = []
    for one in panel.sets:
        assert one.masks is not None
        packed = [np.frombuffer(mask, np.uint8) for layer in one.masks for mask in layer]
        masks = np.unpackbits(np.stack(packed), axis=1, count=one.seen).astype(float)
        bounds = np.linspace(0, one.seen, bins + 1).round().astype(int)
        heads.append(np.add.reduceat(masks, bounds[:-1], axis=1) / np.diff(bounds))
    return np.mean(heads, axis=0)
