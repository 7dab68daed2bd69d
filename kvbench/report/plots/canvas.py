"""Figures with a heading and small multiples, the style of their lines, and their files: same picture, same bytes.

A method has the same colour and marker in all figures (`kvbench.report.colours`). Labels stand outside the axes, beside
the ends of lines: what is inside and has a colour is data.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from matplotlib.offsetbox import AnnotationBbox, DrawingArea, HPacker, TextArea
from scipy.optimize import isotonic_regression

from kvbench.report.colours import looks
from kvbench.report.output import file_to
from kvbench.report.plots.covered import show_covered
from kvbench.support.errors import UserError
from kvbench.support.text import printable

Point = tuple[float, float, float | None, float | None]
"""x, y, and the ends of the interval of y."""
SUFFIXES = (".pdf", ".png", ".svg")
MOST_PANELS = 24
LABEL_POINTS = 6.5
LABEL_PLACE = 1.07
"""Where labels begin at the right of a panel, as a share of its width."""
HANDLE = 20.0
"""Typographic points of the piece of a line that stands before its label."""
LEADER = {"arrowstyle": "-", "color": "#a0a0a0", "linewidth": 0.4, "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 0}
"""What leads from a label to the end of its line: thinner than any data, and below it."""
COINCIDING = "rings: coinciding points"
_STYLE = Path(__file__).with_name("kvbench.mplstyle")
_NO_DATE: Mapping[str, dict[str, None]] = {
    ".pdf": {"CreationDate": None},
    ".png": {"Software": None},
    ".svg": {"Date": None},
}


class Shown(Figure):
    """A figure that a notebook shows: matplotlib's own ones it shows only where pyplot was imported."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", metadata=_NO_DATE[".png"], bbox_inches="tight", pad_inches=0.08)
        return content.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """Draw in one style, whatever a user's matplotlibrc says. A character missing in the font is a box."""
    with matplotlib.rc_context(), matplotlib.style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def check_file(out: Path | None) -> Path:
    """Raise ValueError if there is no file to draw into, or its suffix is unknown."""
    if out is None or out.suffix not in SUFFIXES:
        named = "" if out is None else f", not {out.name!r}"
        raise UserError(f"a plot goes to a file: name it with --out FILE{'|'.join(SUFFIXES)}{named}")
    return out


def save(figure: Figure, out: Path) -> None:
    """Write a figure with all that it shows in the format of the suffix, without date and version."""
    with file_to(out) as path:
        figure.savefig(path, metadata=_NO_DATE[out.suffix], bbox_inches="tight", pad_inches=0.08)


def stamped(figure: Figure, word: str) -> Figure:
    """Return the figure with a word in its upper right corner, such as a warning that it is a smoke test."""
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
    margin: float = 0.15,
    labels: Sequence[str] = (),
    **axes: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with one panel per title (of ``width`` x ``height`` inches) and a right margin of ``margin``
    inches.

    The first line of the heading is what all panels have in common. ``labels``: of the lines; panels have room for them
    at the right, one above the other. Raises ValueError for more than ``MOST_PANELS``.
    """
    count = len(panel_titles)
    if count > MOST_PANELS:
        raise UserError(
            f"{count} panels are too many for one picture ({MOST_PANELS}); select fewer: task=... budget=..."
        )
    if labels:
        width += room((*labels, COINCIDING)) + HANDLE / 72
        height = max(height, 0.7 + LABEL_POINTS * 1.3 / 72 * (len(labels) + 1))
    wrapped = [
        "\n".join(textwrap.fill(line, int(width * 13.5)) for line in title.split("\n")) for title in panel_titles
    ]
    height += 0.13 * max(title.count("\n") for title in wrapped)
    columns = columns_of(count, columns)
    lines = math.ceil(count / columns)
    inches = columns * width + margin
    wraps = [textwrap.wrap(line, int(inches * (14 if i else 12.5))) for i, line in enumerate(heading.split("\n"))]
    head = 0.2 + 0.14 * sum(map(len, wraps))
    size = (inches, lines * height + head)
    figure = Shown(figsize=size, layout="constrained")
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


def columns_of(count: int, most: int) -> int:
    """Return how many of ``count`` panels stand beside each other: at most ``most``, and four in two rows of two."""
    return 2 if count == 4 and most == 3 else min(most, count)


def room(labels: Iterable[str]) -> float:
    """Inches that the longest label takes."""
    return 0.2 + LABEL_POINTS * 0.6 / 72 * max(map(len, labels), default=0)


def label_axes(axis: Axes, x: str, y: str) -> None:
    """Labels where a panel of small multiples shows its ticks: below the last row, left of the first column."""
    axis.set_xlabel(x if has_bottom(axis) else "")
    place = axis.get_subplotspec()
    axis.set_ylabel(y if place is not None and place.is_first_col() else "")


def has_bottom(axis: Axes) -> bool:
    """Return whether a panel shows the tick labels of its x axis."""
    return bool(axis.xaxis.get_tick_params()["labelbottom"])


def colour_bar(figure: Figure, image: AxesImage, label: str) -> None:
    """Draw a colour bar in a right margin of 0.9 inches."""
    width = figure.get_size_inches()[0]
    figure.colorbar(image, cax=figure.add_axes((1 - 0.75 / width, 0.25, 0.12 / width, 0.45)), label=label)


def titles(keyed: Sequence[Mapping[str, Any]], between: str = ", ") -> tuple[str, list[str]]:
    """Return what all panels have in common, and the rest of each title, as text."""
    names = list(dict.fromkeys(name for title in keyed for name in title))
    common = [name for name in names if len({repr(title.get(name)) for title in keyed}) == 1]
    shared = ", ".join(_named(name, keyed[0][name]) for name in common if keyed[0].get(name) is not None)
    panel_titles = [
        between.join(_named(name, title[name]) for name in names if name not in common and title.get(name) is not None)
        for title in keyed
    ]
    return shared, panel_titles


def n_of(counts: Collection[int], noun: str = "sample") -> str:
    """Return how many samples means are over: ``n = 2 to 3 samples``."""
    least, most = min(counts), max(counts)
    return f"n = {least}" + f" to {most}" * (most > least) + f" {noun}" + "s" * (most > 1)


def _named(key: str, value: Any) -> str:
    if key == "context_length":
        return f"{value} tokens"
    text = printable(str(value))
    return text if key in ("policy", "score", "task") else f"{key.replace('_', ' ')} {text}"


DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (7, 2)), (0, (3, 1, 1, 1, 1, 1)))
REFERENCE = {"color": "#767676", "linewidth": 0.9, "linestyle": (0, (6, 3)), "label": "full cache"}


@dataclass(frozen=True)
class Marks:
    """How lines labelled (policy, rest) are drawn; the rest is the score and other settings.

    Colour and marker are the policy's, dashes tell the rest apart. If no panel shows more than one policy
    (``alone``), colour and marker are the rest's, and dashes tell lines of one colour apart.
    """

    labels: tuple[tuple[str, str], ...]
    policies: tuple[str, ...]
    others: tuple[str, ...]
    alone: bool

    @classmethod
    def over(cls, labels: Iterable[tuple[str, str]], alone: bool = False) -> "Marks":
        """Return marks for all lines of a figure, in the order in which they appear."""
        labels = tuple(dict.fromkeys(labels))
        policies, others = (tuple(dict.fromkeys(label[i] for label in labels)) for i in (0, 1))
        return cls(labels, policies, others, len(others) > 1 and (alone or len(policies) == 1))

    def of(self, label: tuple[str, str]) -> dict[str, Any]:
        """Return the style of a line, and its label."""
        policy, other = label
        if policy == "full":
            return {**REFERENCE, "marker": "."}
        look = looks(self.others)[other] if self.alone else looks(self.policies)[policy]
        turn, dash = divmod(look.turn if self.alone else self.turn(other), len(DASHES))
        is_hollow = (look.turn > 0) != bool(turn % 2)
        return {
            "color": look.colour,
            "marker": look.marker,
            "linestyle": DASHES[dash],
            "markerfacecolor": "white" if is_hollow else look.colour,
            "label": self.name(label),
        }

    def turn(self, other: str) -> int:
        """Return the place of the rest among all of the figure; 0 for a policy that has none."""
        return [text for text in self.others if text].index(other) if other else 0

    def name(self, label: tuple[str, str]) -> str:
        """Return the words that tell a line apart: its policy, the rest, or both."""
        policy, other = label
        if self.alone:
            return other or policy
        return " ".join(filter(None, dict.fromkeys(label))) if len(self.others) > 1 else policy

    @property
    def names(self) -> list[str]:
        """Names at the ends of lines."""
        return list(dict.fromkeys(map(self.name, self.labels)))


def label_ends(figure: Figure, axes: Sequence[Axes]) -> None:
    """Write the label of each line outside the axes, near the height of its end; labels keep apart, and no line moves.

    A panel with rings (`show_covered`) says below what they are.
    """
    figure.draw_without_rendering()
    for axis in axes:
        axis.autoscale(False)  # what comes now marks places, and is no data
    for axis in axes:
        named = [line for line in axis.lines if not str(line.get_label()).startswith("_")]
        lines = [line for line in named if np.isfinite(line.get_xydata()).all(axis=1).any()]
        of_data = [line for line in lines if line.get_transform() == axis.transData]
        has_rings = show_covered(axis, of_data, figure.dpi / 72)
        ends = {}  # equal levels are one
        for line in lines:
            places = line.get_transform().transform(line.get_xydata())
            places = places[np.isfinite(places).all(axis=1)]
            end = axis.transAxes.inverted().transform(places[-1]).round(4).tolist()
            ends[str(line.get_label()), *end] = line, len(places) == 1
        labels: list[tuple[str, list[Line2D], tuple[float, float] | None]]
        labels = [(label, _handle(*shown), (x, y)) for (label, x, y), shown in ends.items()]
        if has_rings:
            labels.append((COINCIDING, _rings(), None))
        gap = LABEL_POINTS * 1.2 / 72 * figure.dpi / axis.bbox.height
        heights = _spread([-1.0 if end is None else end[1] for *_, end in labels], gap)
        for (label, handle, end), height in zip(labels, heights, strict=True):
            _label(axis, label, handle, end, height)


def _label(axis: Axes, label: str, handle: Sequence[Line2D], end: tuple[float, float] | None, height: float) -> None:
    """Draw a label with its handle beside a panel, and a thin grey line to the end of what it names."""
    sample = DrawingArea(HANDLE, LABEL_POINTS)
    for line in handle:
        line.set_transform(sample.get_transform())
        sample.add_artist(line)
    text = TextArea(label, textprops={"fontsize": LABEL_POINTS, "color": "#222222"})
    place = (LABEL_PLACE, height)
    beside = AnnotationBbox(
        HPacker(children=[sample, text], align="center", pad=0, sep=3),
        end or place,
        xybox=place,
        xycoords="axes fraction",
        boxcoords="axes fraction",
        box_alignment=(0, 0.5),
        pad=0,
        frameon=False,
        annotation_clip=False,
        arrowprops=LEADER if end else None,
        zorder=1.6,
    )
    axis.add_artist(beside)


def _handle(line: Line2D, is_point: bool) -> list[Line2D]:
    """Return a short line that looks like another; its marker alone for one point, which no line leads to."""
    sample = Line2D((0, HANDLE / 2, HANDLE), (LABEL_POINTS / 2,) * 3)
    sample.update_from(line)
    sample.set(clip_on=False, linewidth=1, markersize=4, markevery=(1, 3))
    if is_point:
        sample.set_linestyle("none")
    return [sample]


def _rings() -> list[Line2D]:
    """Return two rings around each other."""
    style: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "markeredgecolor": "#777777"}
    place = ([HANDLE / 2], [LABEL_POINTS / 2])
    return [Line2D(*place, markersize=size, markeredgewidth=0.8, **style) for size in (6.5, 3)]


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return the nearest heights in the same order that are at least ``gap`` apart; in 0..1 if they fit."""
    order = np.argsort(heights, kind="stable")
    gaps, top = gap * np.arange(len(heights)), 1 - gap * (len(heights) - 1)
    nearest = isotonic_regression(np.asarray(heights)[order] - gaps).x
    spread = np.empty(len(heights))
    spread[order] = np.clip(nearest, min(0, top / 2), max(top, top / 2)) + gaps
    return spread.tolist()
