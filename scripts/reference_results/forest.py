"""The comparisons of a page as a figure: a line for each, with its interval, under the headings of the page."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from kvbench.report.compare.compare import Difference
from kvbench.report.plots import canvas
from kvbench.report.stats.paired_tests import holm
from reference_results.pages import BLOCK, Comparison, comparisons_of, difference, verdict

COLOURS = {"B better": "#0072B2", "B worse": "#D55E00"}
"""Verdicts that Holm's correction decides; the others are grey."""
LINE, HEAD = 0.17, 1.05
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
    lines = [difference(comparison) for _, comparison in placed]
    corrected = holm([line.p if line.p is not None else 1.0 for line in lines])
    shown = [
        (heading, comparison.label, line, verdict(line, p))
        for (heading, comparison), line, p in zip(placed, lines, corrected, strict=True)
        if line.rate and (not sections or heading in sections)
    ]
    with canvas.styled():
        canvas.save(_forest(shown), out)


def _forest(shown: Sequence[tuple[str, str, Difference, str]]) -> Figure:
    """Points with intervals, from top to bottom; a heading takes a line of its own."""
    headings = list(dict.fromkeys(heading for heading, *_ in shown))
    rows = len(shown) + len(headings)
    figure = Figure(figsize=(7.4, HEAD + LINE * rows), layout="constrained")
    axis = figure.subplots()
    labels: list[tuple[int, str, bool]] = []
    place = 0
    for heading in headings:
        labels.append((place, heading, True))
        place += 1
        for _, label, line, decided in (each for each in shown if each[0] == heading):
            centre, low, high = (100 * (number or 0) for number in (line.difference, line.low, line.high))
            colour = COLOURS.get(decided, "#8a8a8a")
            axis.plot([low, high], [place, place], color=colour, linewidth=1.4)
            axis.plot([centre], [place], "o", color=colour, markersize=3.6)
            labels.append((place, f"{label}  (n={line.n})", False))
            place += 1
    axis.axvline(0, color="#444444", linewidth=0.8)
    axis.set_ylim(rows - 0.4, -0.6)
    axis.set_yticks([at for at, _, _ in labels], [text for _, text, _ in labels], fontsize=canvas.LABEL_POINTS)
    for (_, _, is_heading), tick in zip(labels, axis.get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if is_heading else "normal")
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("B - A in points, paired by prompt, with 95 % interval")
    axis.set_title(
        "blue, orange: decided after Holm's correction over all lines of the page; grey: not", fontsize=7, loc="left"
    )
    return figure
