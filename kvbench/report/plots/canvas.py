"""Figures with a heading and small multiples, the style of their lines, and their files: same picture, same bytes.

A method has the same colour and marker in all figures (`kvbench.report.colours`).
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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from kvbench.report.colours import looks
from kvbench.report.report_file import file_to
from kvbench.support.errors import UserError
from kvbench.support.text import printable

Point = tuple[float, float, float | None, float | None]
"""x, y, and the ends of the interval of y."""
SUFFIXES = (".pdf", ".png", ".svg")
MOST_PANELS = 24
LABEL_POINTS = 6.5
HANDLE = 20.0
"""Typographic points of the piece of a line that stands before its label."""
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
    all_axes = list(figure.subplots(lines, columns, squeeze=False, **axes).flat)
    for unused in all_axes[count:]:
        unused.set_visible(False)
    for i, (axis, title) in enumerate(zip(all_axes, wrapped, strict=False)):
        axis.tick_params(labelbottom=i + columns >= count or not axes.get("sharex"))
        axis.set_title(title)
    for i, line in enumerate(chain(*wraps)):
        weight = "bold" if i < len(wraps[0]) else "normal"
        figure.text(0.1 / size[0], 1 - (0.1 + 0.15 * i) / size[1], line, va="top", fontweight=weight)
    return figure, all_axes[:count]


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
