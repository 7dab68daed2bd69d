"""Figures with a heading and small multiples, the style of their lines, and their files: same picture, same bytes.

A policy has the same colour in all figures; markers and dashes tell lines apart without colour too. The colours are
those of Okabe and Ito, "Color Universal Design" (2008), without the yellow, which is faint on white.
"""

import math
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from kvbench.report.output import file_to
from kvbench.report.tables.pivot import Block, Line
from kvbench.support.errors import UserError
from kvbench.support.text import printable

Point = tuple[float, float, float | None, float | None]
"""x, y, and the ends of the interval of y."""
SUFFIXES = (".pdf", ".png", ".svg")
MOST_PANELS = 24
_STYLE = Path(__file__).with_name("kvbench.mplstyle")
_NO_DATE: Mapping[str, dict[str, None]] = {
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
    ".svg": {"Date": None},
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in one style, whatever a user's matplotlibrc says. A character missing in the font is a box."""
    with matplotlib.rc_context(), matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def check_file(out: Path | None) -> Path:
    """Raises ValueError if there is no file to draw into, or its suffix is unknown."""
    if out is None or out.suffix not in SUFFIXES:
        named = "" if out is None else f", not {out.name!r}"
        raise UserError(f"a plot goes to a file; name it with --out FILE{'|'.join(SUFFIXES)}{named}")
    return out


def save(figure: Figure, out: Path) -> None:
    """Write a figure in the format of the suffix, without date and version."""
    file_to(out, lambda path: figure.savefig(path, metadata=_NO_DATE[out.suffix]))


def stamped(figure: Figure, word: str) -> Figure:
    """The figure with a word in its upper right corner, such as a warning that it is a smoke test."""
    width, height = figure.get_size_inches()
    place = (1 - 0.1 / width, 1 - 0.1 / height)
    figure.text(*place, word, ha="right", va="top", fontweight="bold", color="#B22222")
    return figure


def panels(
    panel_titles: Sequence[str],
    heading: str,
    width: float = 2.9,
    height: float = 2.3,
    columns: int = 3,
    margin: float = 1.4,
    **axes: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel per title (of ``width`` x ``height`` inches) and a right margin of ``margin`` inches.

    The first line of the heading is what all panels have in common. Raises ValueError for more than ``MOST_PANELS``.
    """
    count = len(panel_titles)
    if count > MOST_PANELS:
        raise UserError(
            f"{count} panels are too many for one picture ({MOST_PANELS}); select fewer: task=... budget=..."
        )
    wrapped = [
        "\n".join(textwrap.fill(line, int(width * 13.5)) for line in title.split("\n")) for title in panel_titles
    ]
    height += 0.13 * max(title.count("\n") for title in wrapped)
    columns = 2 if count == 4 and columns == 3 else min(columns, count)
    lines = math.ceil(count / columns)
    inches = columns * width + margin
    wraps = [textwrap.wrap(line, int(inches * (14 if i else 12.5))) for i, line in enumerate(heading.split("\n"))]
    head = 0.25 + 0.14 * sum(map(len, wraps))
    size = (inches, lines * height + head)
    figure = Figure(figsize=size, layout="constrained")
    rect = (0, 0, 1 - margin / size[0], 1 - head / size[1])
    figure.get_layout_engine().set(w_pad=0.08, wspace=0.03, rect=rect)  # type: ignore[union-attr]
    drawn = list(figure.subplots(lines, columns, squeeze=False, **axes).flat)
    for unused in drawn[count:]:
        unused.set_visible(False)
    for i, (axis, title) in enumerate(zip(drawn, wrapped, strict=False)):
        axis.tick_params(labelbottom=i + columns >= count or not axes.get("sharex"))
        axis.set_title(title)
    for i, line in enumerate(chain(*wraps)):
        weight = "bold" if i < len(wraps[0]) else "normal"
        figure.text(0.1 / size[0], 1 - (0.1 + 0.15 * i) / size[1], line, va="top", fontweight=weight)
    return figure, drawn[:count]


def label_axes(axis: Axes, x: str, y: str) -> None:
    """Labels where a panel of small multiples shows its ticks: below the last row, left of the first column."""
    axis.set_xlabel(x if has_bottom(axis) else "")
    axis.set_ylabel(y if is_first(axis) else "")


def heat_map(axis: Axes, grid: np.ndarray[Any, Any], most: int, **limits: Any) -> AxesImage:
    """A heat map without a grid, with its numbers in it if it has at most ``most`` squares."""
    image = axis.imshow(grid, aspect="auto", interpolation="none", **limits)
    write_numbers(image, grid, most)
    axis.grid(visible=False)
    return image


def plot_band(axis: Axes, points: Sequence[Point], **style: Any) -> None:
    """A line through points, and the band of the intervals that are known; it may reach beyond the axes."""
    axis.plot([x for x, *_ in points], [y for _, y, *_ in points], **style)
    ends = [(x, low, high) for x, _, low, high in points if low is not None and high is not None]
    if ends:
        xs, lows, highs = zip(*ends, strict=True)
        axis.fill_between(xs, lows, highs, color=style["color"], alpha=0.13, linewidth=0).set_in_layout(False)


def is_first(axis: Axes) -> bool:
    """Whether a panel is the first of its row."""
    place = axis.get_subplotspec()
    return place is not None and place.is_first_col()


def has_bottom(axis: Axes) -> bool:
    """Whether a panel shows the tick labels of its x axis."""
    return bool(axis.xaxis.get_tick_params()["labelbottom"])


def legend_at(figure: Figure, margin: float = 1.4, below: bool = False) -> dict[str, Any]:
    """The place of a legend in the right margin; `below` a heading that is as wide as the figure."""
    width, height = figure.get_size_inches()
    engine = figure.get_layout_engine()
    top = engine.get()["rect"][3] if below and engine is not None else 1 - 0.3 / height
    return {"loc": "upper left", "bbox_to_anchor": (1 - (margin - 0.05) / width, top)}


def write_numbers(picture: AxesImage, grid: np.ndarray[Any, Any], most: int) -> None:
    """Write the numbers of a heat map, light on dark, if it has at most ``most`` squares."""
    if grid.size > most:
        return
    middle = sum(picture.get_clim()) / 2
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if value < middle else "black"
            picture.axes.text(column, row, f"{value:.3g}", ha="center", va="center", color=colour, fontsize=6)


def ticks(names: Sequence[object], most: int) -> tuple[range, list[str]]:
    """Places and labels of at most ``most`` ticks for the squares of a heat map."""
    step = -(-len(names) // most)
    return range(0, len(names), step), [str(name) for name in names[::step]]


def colour_bar(figure: Figure, image: AxesImage, label: str) -> None:
    """A colour bar in a right margin of 0.9 inches."""
    width = figure.get_size_inches()[0]
    figure.colorbar(image, cax=figure.add_axes((1 - 0.75 / width, 0.25, 0.12 / width, 0.45)), label=label)


def titles(keyed: Sequence[Mapping[str, Any]], between: str = ", ") -> tuple[str, list[str]]:
    """What all panels have in common, and the rest of each title, as text."""
    names = list(dict.fromkeys(name for title in keyed for name in title))
    common = [name for name in names if len({repr(title.get(name)) for title in keyed}) == 1]
    shared = ", ".join(_named(name, keyed[0][name]) for name in common if keyed[0].get(name) is not None)
    panel_titles = [
        between.join(_named(name, title[name]) for name in names if name not in common and title.get(name) is not None)
        for title in keyed
    ]
    return shared, panel_titles


def n_of(counts: Collection[int], what: str = "sample") -> str:
    """How many samples means are over: ``n = 2 to 3 samples``."""
    least, most = min(counts), max(counts)
    return f"n = {least}" + f" to {most}" * (most > least) + f" {what}" + "s" * (most > 1)


def _named(key: str, value: Any) -> str:
    if key == "context_length":
        return f"{value} tokens"
    text = printable(str(value))
    return text if key in ("policy", "score", "task") else f"{key.replace('_', ' ')} {text}"


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (7, 2)), (0, (3, 1, 1, 1, 1, 1)))
REFERENCE = {"color": "#555555", "linewidth": 0.9, "linestyle": (0, (6, 3))}


@dataclass(frozen=True)
class Marks:
    """Colours of policies (first label of a line), markers and dashes of the rest (score, settings)."""

    policies: tuple[str, ...]
    others: tuple[str, ...]

    def of(self, line: Line) -> dict[str, Any]:
        """How the line is drawn."""
        first, other = split(line)
        turn, colour = divmod(self.policies.index(first), len(COLOURS))  # colours come again with another marker
        mark = self.others.index(other)
        return {
            "color": COLOURS[colour],
            "marker": MARKERS[(mark + 3 * turn) % len(MARKERS)],
            "linestyle": DASHES[mark % len(DASHES)],
            "markerfacecolor": "white" if turn % 2 else COLOURS[colour],
        }

    def legend(self, figure: Figure, names: Sequence[str], reference: bool, margin: float = 1.4) -> None:
        """One legend in two parts, colours, then markers, in a right margin of ``margin`` inches."""
        heads = names[0], ", ".join(names[1:])
        entries: list[tuple[str, dict[str, Any]]] = [(heads[0], {"linestyle": "none"})]
        for place, policy in enumerate(self.policies):
            turn, colour = divmod(place, len(COLOURS))
            turned = {"marker": "s", "markerfacecolor": "white"} if turn % 2 else {}
            entries.append((textwrap.fill(policy, 20), {"color": COLOURS[colour], "linewidth": 3, **turned}))
        entries += [("full cache", REFERENCE)] if reference else []
        if len(self.others) > 1:
            entries += [("", {"linestyle": "none"}), (heads[1], {"linestyle": "none"})]
            for mark, other in enumerate(self.others):
                marked = {"marker": MARKERS[mark % len(MARKERS)], "linestyle": DASHES[mark % len(DASHES)]}
                entries.append((textwrap.fill(other, 20) or "none", {"color": "#333333", **marked}))
        handles = [Line2D([], [], label=label, **style) for label, style in entries]
        drawn = figure.legend(handles=handles, handlelength=2.6, labelspacing=0.35, **legend_at(figure, margin))
        for text in drawn.get_texts():
            if text.get_text() in heads:
                text.set_fontweight("bold")
                text.set_x(-32)


def marks_of(blocks: Sequence[Block]) -> Marks:
    """Marks for the lines of all blocks, in the order in which they appear."""
    lines = [split(line) for block in blocks for line in block.lines if not line.reference]
    return Marks(tuple(dict.fromkeys(first for first, _ in lines)), tuple(dict.fromkeys(other for _, other in lines)))


def split(line: Line) -> tuple[str, str]:
    """The first label and the others, as text."""
    first, *others = ("" if label is None else printable(str(label)) for label in line.labels)
    return first, " ".join(filter(None, others))


def name_of(line: Line) -> str:
    """All labels."""
    return " ".join(filter(None, split(line)))
