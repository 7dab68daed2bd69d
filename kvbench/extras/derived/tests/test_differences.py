"""Relative differences between values of a setting."""

import pytest

from kvbench.extras.derived.differences import DifferencesItem, relative_differences
from kvbench.papers.item import Layout
from tests.papers.made_up import placed


def test_chunk_sizes_are_compared_by_relative_differences():
    """KVzip, Reconstruction Chunk Size: |p_1k - p_2k| / p_2k, averaged over tasks."""
    layout = Layout(rows=("policy",), cols=("chunk",))
    item = DifferencesItem("x/y", "t", settings=("policy=kvzip",), layout=layout, between="chunk")
    tasks = {"a": (0.45, 0.50), "b": (0.60, 0.40), "c": (0.3, 0.0)}
    cells = [
        placed(("kvzip", chunk), task, mean)
        for task, means in tasks.items()
        for chunk, mean in zip(("1000", "2000"), means, strict=True)
    ]
    (number,) = relative_differences(item, cells).values()
    assert number.mean == pytest.approx((0.05 / 0.50 + 0.20 / 0.40) / 2)
    assert set(relative_differences(item, cells)) == {("kvzip", "1000 and 2000")}
