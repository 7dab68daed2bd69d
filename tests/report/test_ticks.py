"""Pictures that can be read: no number of an axis over its neighbour, and a heading that says what is drawn."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvbench.report.plots import perplexity, tradeoff
from kvbench.report.plots.canvas import styled
from tests.report.test_plot import curve, drawn, texts


def assert_apart(figure: Figure) -> None:
    """No two labels of one axis meet."""
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        for axis, low, high in ((axes.xaxis, "x0", "x1"), (axes.yaxis, "y0", "y1")):
            labels = [label for label in axis.get_ticklabels() if label.get_text() and label.get_visible()]
            boxes = [label.get_window_extent() for label in labels]
            inside = sorted(boxes, key=lambda box: getattr(box, low))
            assert all(getattr(a, high) < getattr(b, low) for a, b in pairwise(inside)), [x.get_text() for x in labels]


@pytest.mark.parametrize(
    ("x", "factor"), [("fraction", 1.6), ("fraction", 20), ("pairs", 3), ("bytes", 2), ("bytes", 4)]
)
def test_numbers_of_the_cost_stand_apart(cell, results, x: str, factor: float) -> None:
    sizes = [("0.1", 1.0), ("0.2", float(factor))]
    cells = [
        cell([1.0, 0.0], task=task, budget=name, kept_fraction=size / 40, kept_tokens=13 * size, cache_bytes=share)
        for task in ("ruler/a", "ruler/b")
        for name, size in sizes
        for share in [int(150_323 * size)]
    ]
    with styled():  # as it is when a picture is saved
        assert_apart(drawn(tradeoff.draw, results(*cells), x=x))


def test_numbers_of_many_budgets_stand_apart(cell, results) -> None:
    """Budgets that double and two that do not: one of them has no number."""
    shares = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
    cells = [
        cell([1.0, 0.0], task=task, budget=str(share), kept_fraction=share, kept_tokens=400 * share)
        for task in ("ruler/a", "ruler/b")
        for share in shares
    ]
    with styled():
        assert_apart(figure := drawn(tradeoff.draw, results(*cells)))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["80 %", "40 %", "20 %", "10 %", "5 %"]


def test_numbers_of_perplexities_stand_apart_over_wide_bands(cell, results) -> None:
    nats = np.array([[1.0, 4.0, 9.0, 2.0], [7.0, 5.0, 8.0, 4.0]])
    folder = results(cell(nats.mean(1).tolist(), "h2o", metric="nll", task="pg19", cell="ab", budget="32"))
    for sample, sums in enumerate(nats):
        curve(folder, "ab", sample, sums.tolist(), [1, 1, 1, 1])
    with styled():
        assert_apart(figure := drawn(perplexity.draw, folder))
    without = drawn(perplexity.draw, folder, intervals="no")
    assert "95 % intervals" in texts(figure) and "intervals" not in texts(without)
