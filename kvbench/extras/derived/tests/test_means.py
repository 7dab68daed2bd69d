"""A mean over the values of a key beside each number."""

import pytest

from kvbench.extras.derived.means import MeansItem
from kvbench.papers.item import Layout
from kvbench.papers.numbers import places
from tests.papers.made_up import placed


def test_figure_2_has_the_mean_of_its_models():
    """LAVa, Section 5.2: average scores obtained with Qwen and Mistral."""
    item = MeansItem("x/y", "t", settings=("policy=lava",), layout=Layout(rows=("model", "policy")), over="model")
    cells = [placed(("Mistral", "lava", "128"), "a", 0.2), placed(("Qwen", "lava", "128"), "b", 0.5)]
    numbers = places(item, item.with_means(cells))
    assert numbers["mean of Mistral, Qwen", "lava", "128"].mean == pytest.approx(0.35)
    assert numbers["Qwen", "lava", "128"].mean == 0.5
    assert set(places(item, item.with_means(cells[:1]))) == {cells[0].at}
