"""Which colour, marker and dash a line has: the same policy, the same colour; told apart without colour too.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), without the yellow, which is faint on white.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvbench.report.plots.canvas import legend_at
from kvbench.report.tables.pivot import Block, Line
from kvbench.support.printable import printable

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
        place = self.policies.index(first)
        turn = place // len(COLOURS)  # colours come again with another marker
        mark = self.others.index(other)
        return {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[(mark + 3 * turn) % len(MARKERS)],
            "linestyle": DASHES[mark % len(DASHES)],
            "markerfacecolor": "white" if turn % 2 else COLOURS[place % len(COLOURS)],
        }

    def legend(self, figure: Figure, names: Sequence[str], reference: bool, margin: float = 1.4) -> None:
        """One legend in two parts, colours, then markers, in a margin of so many inches."""
        colours = list(islice(cycle(COLOURS), len(self.policies)))
        entries = [Line2D([], [], linestyle="none", label=names[0])] if names else []
        for place, (policy, colour) in enumerate(zip(self.policies, colours, strict=True)):
            turned: dict[str, Any] = {"marker": "s", "markerfacecolor": "white"} if place // len(COLOURS) % 2 else {}
            entries.append(Line2D([], [], color=colour, linewidth=3, label=textwrap.fill(policy, 20), **turned))
        if reference:
            entries.append(Line2D([], [], label="full cache", **REFERENCE))
        if len(self.others) > 1:
            entries.append(Line2D([], [], linestyle="none", label=""))
            entries.append(Line2D([], [], linestyle="none", label=", ".join(names[1:])))
            for mark, other in enumerate(self.others):
                entries.append(
                    Line2D(
                        [],
                        [],
                        color="#333333",
                        marker=MARKERS[mark % len(MARKERS)],
                        linestyle=DASHES[mark % len(DASHES)],
                        label=textwrap.fill(other, 20) or "none",
                    )
                )
        drawn = figure.legend(handles=entries, handlelength=2.6, labelspacing=0.35, **legend_at(figure, margin))
        for text in drawn.get_texts():
            if text.get_text() in (names[0], ", ".join(names[1:])):
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
