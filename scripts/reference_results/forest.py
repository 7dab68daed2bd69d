"""The comparisons of a page as a figure: a line for each, with its interval, under the headings of the page.

What A is stands at the left of a line, what B is at its right, and each is better on its own side.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kvbench.report.compare.compare import Difference
from kvbench.report.plots import canvas
from kvbench.report.stats.verdicts import BETTER, WORSE
from reference_results.pages import BLOCK, Comparison, comparisons_of, judged

A_BETTER, B_BETTER = "#D55E00", "#0072B2"
COLOURS = {WORSE: A_BETTER, BETTER: B_BETTER}
"""Verdicts that Holm's correction decides; the others are grey."""
LINE, HEAD = 0.145, 1.2
"""Inches of a line, and of everything above and below them."""


def draw_forest(page: Path, out: Path, sections: Sequence[str] = ()) -> None:
    """Draw the comparisons of a page that are in points, all or those under some headings (`sections`); corrected as on
    the whole page.
    """
    text = page.read_text("utf-8")
    placed: list[tuple[str, Comparison]] = []
    for chapter in text.split("\n## ")[1:]:
        heading = chapter.partition("\n")[0]
        placed += [(heading, line) for block in BLOCK.finditer(chapter) for line in comparisons_of(block[2])]
    shown = [
        (heading, comparison.label, each.line, each.verdict)
        for (heading, comparison), each in zip(placed, judged([line for _, line in placed]), strict=True)
        if each.line.rate and (not sections or heading in sections)
    ]
    with canvas.styled():
        canvas.save(_forest(shown), out)


def sides(label: str) -> tuple[str, str, str]:
    """What both sides of a comparison have in common, A and B, from its label: `H2O: attn, caote`.

    A semicolon stands between sides whose names have commas. Raises ValueError for a label without two sides.
    """
    common, _, pair = label.rpartition(": ")
    a, between, b = pair.partition("; " if "; " in pair else ", ")
    if not between:
        raise ValueError(f"{label!r} names one side: `what is common: A, B`")
    return common, a, b


def _forest(shown: Sequence[tuple[str, str, Difference, str]]) -> Figure:
    """Points with intervals, from top to bottom; a heading takes a line of its own."""
    headings = list(dict.fromkeys(heading for heading, *_ in shown))
    rows = len(shown) + len(headings)
    figure = Figure(figsize=(8.4, HEAD + LINE * rows), layout="constrained")
    axis = figure.subplots()
    beside = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": canvas.LABEL_POINTS}
    left: list[str] = []
    for heading in headings:
        axis.text(-0.01, len(left), heading, ha="right", fontweight="bold", **beside)
        left.append("")
        for _, label, line, decided in (each for each in shown if each[0] == heading):
            place, (common, a, b) = len(left), sides(label)
            centre, low, high = (100 * (number or 0) for number in (line.difference, line.low, line.high))
            colour = COLOURS.get(decided, "#8a8a8a")
            axis.plot([low, high], [place, place], color=colour, linewidth=1.4)
            axis.plot([centre], [place], "o", color=colour, markersize=3.6)
            axis.text(1.01, place, f"{b}  (n={line.n})", **beside)
            left.append(f"{common}: {a}" if common else a)
    axis.axvline(0, color="#444444", linewidth=0.8)
    axis.set_ylim(rows - 0.4, -0.6)
    axis.set_yticks(range(rows), left, fontsize=canvas.LABEL_POINTS)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(
        "B - A in points, paired by prompt, with 95 % interval\n"
        "orange, blue: decided after Holm's correction over all lines of the page; grey: neither"
    )
    above: dict[str, Any] = {"transform": axis.transAxes, "va": "bottom", "fontweight": "bold", "fontsize": 8}
    axis.text(-0.01, 1.01, "A", ha="right", **above)
    axis.text(1.01, 1.01, "B", **above)
    zero = axis.transAxes.inverted().transform(axis.transData.transform((0, 0)))[0]
    axis.text(zero - 0.02, 1.01, "\N{LEFTWARDS ARROW} A better", ha="right", color=A_BETTER, **above)
    axis.text(zero + 0.02, 1.01, "B better \N{RIGHTWARDS ARROW}", color=B_BETTER, **above)
    return figure
