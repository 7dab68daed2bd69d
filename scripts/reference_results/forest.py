"""The comparisons of a page, or claims, as a figure: a line for each, with its interval, under headings.

What A is stands at the left of a line, what B is at its right, and each is better on its own side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kvbench.extras.claims.verdicts import CONFIRMED, CONTRADICTED, Verdict, check
from kvbench.report.compare.compare import Difference
from kvbench.report.plots import canvas
from kvbench.report.stats.verdicts import BETTER, WORSE
from reference_results.pages import BLOCK, Comparison, claims_of, comparisons_of, judged

A_BETTER, B_BETTER, NO_DIFFERENCE, UNDECIDED = "#D55E00", "#0072B2", "#009E73", "#8a8a8a"
COLOURS = {WORSE: A_BETTER, BETTER: B_BETTER}
"""Verdicts that Holm's correction decides; the others are grey."""
OF_PAGES = "orange, blue: decided after Holm's correction over all lines of the page; grey: neither"
OF_CLAIMS = (
    "orange, blue: a difference is confirmed; green: equivalent, or not worse, is confirmed; grey: inconclusive\n"
    "all after Holm's correction over the claims under the same heading"
)
LINE, HEAD = 0.145, 1.2
"""Inches of a line, and of everything above and below them."""


@dataclass(frozen=True)
class Drawn:
    """A line of the figure: its heading, its sides, how many prompts, and B - A with its interval in points."""

    heading: str
    a: str
    b: str
    n: int
    difference: float
    low: float
    high: float
    colour: str


def draw_forest(page: Path, out: Path, sections: Sequence[str] = ()) -> None:
    """Draw the comparisons of a page that are in points, all or those under some headings (`sections`); corrected as on
    the whole page.
    """
    text = page.read_text("utf-8")
    placed: list[tuple[str, Comparison]] = []
    for chapter in text.split("\n## ")[1:]:
        heading = chapter.partition("\n")[0]
        placed += [(heading, line) for block in BLOCK.finditer(chapter) for line in comparisons_of(block[2])]
    shown = []
    for (heading, comparison), each in zip(placed, judged([line for _, line in placed]), strict=True):
        if each.line.rate and (not sections or heading in sections):
            common, a, b = sides(comparison.label)
            colour = COLOURS.get(each.verdict, UNDECIDED)
            shown.append(
                Drawn(heading, f"{common}: {a}" if common else a, b, each.line.n, *_in_points(each.line), colour)
            )
    with canvas.styled():
        canvas.save(_forest(shown, OF_PAGES), out)


def draw_claims(folder: Path, out: Path) -> None:
    """Draw the claims of a folder that are in points and whose rows are all there."""
    _, answers = claims_of(folder)
    shown = []
    for each in check(answers):
        if each.rate and each.difference is not None:
            decided = B_BETTER if each.b_is_better else A_BETTER
            colour = decided if each.claim.shows == "difference" else NO_DIFFERENCE
            is_shown = each.verdict in (CONFIRMED, CONTRADICTED)
            heading = f"{each.claim.family}: claimed before the rows"
            shown.append(
                Drawn(heading, each.a.words, each.b.words, each.n, *_in_points(each), colour if is_shown else UNDECIDED)
            )
    with canvas.styled():
        canvas.save(_forest(shown, OF_CLAIMS), out)


def _in_points(line: Difference | Verdict) -> tuple[float, float, float]:
    """A difference of shares and the ends of its interval."""
    return 100 * (line.difference or 0), 100 * (line.low or 0), 100 * (line.high or 0)


def sides(label: str) -> tuple[str, str, str]:
    """What both sides of a comparison have in common, A and B, from its label: `H2O: attn, caote`.

    A semicolon stands between sides whose names have commas. Raises ValueError for a label without two sides.
    """
    common, _, pair = label.rpartition(": ")
    a, between, b = pair.partition("; " if "; " in pair else ", ")
    if not between:
        raise ValueError(f"{label!r} names one side: `what is common: A, B`")
    return common, a, b


def _forest(shown: Sequence[Drawn], colours: str) -> Figure:
    """Points with intervals, from top to bottom; a heading takes a line of its own. `colours`: what they mean."""
    headings = list(dict.fromkeys(line.heading for line in shown))
    rows = len(shown) + len(headings)
    figure = Figure(figsize=(8.4, HEAD + LINE * rows), layout="constrained")
    axis = figure.subplots()
    beside = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": canvas.LABEL_POINTS}
    left: list[str] = []
    for heading in headings:
        axis.text(-0.01, len(left), heading, ha="right", fontweight="bold", **beside)
        left.append("")
        for line in (each for each in shown if each.heading == heading):
            place = len(left)
            axis.plot([line.low, line.high], [place, place], color=line.colour, linewidth=1.4)
            axis.plot([line.difference], [place], "o", color=line.colour, markersize=3.6)
            axis.text(1.01, place, f"{line.b}  (n={line.n})", **beside)
            left.append(line.a)
    axis.axvline(0, color="#444444", linewidth=0.8)
    axis.set_ylim(rows - 0.4, -0.6)
    axis.set_yticks(range(rows), left, fontsize=canvas.LABEL_POINTS)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel(f"B - A in points, paired by prompt, with 95 % interval\n{colours}")
    above: dict[str, Any] = {"transform": axis.transAxes, "va": "bottom", "fontweight": "bold", "fontsize": 8}
    axis.text(-0.01, 1.01, "A", ha="right", **above)
    axis.text(1.01, 1.01, "B", **above)
    zero = axis.transAxes.inverted().transform(axis.transData.transform((0, 0)))[0]
    axis.text(zero - 0.02, 1.01, "\N{LEFTWARDS ARROW} A better", ha="right", color=A_BETTER, **above)
    axis.text(zero + 0.02, 1.01, "B better \N{RIGHTWARDS ARROW}", color=B_BETTER, **above)
    return figure
