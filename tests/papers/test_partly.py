"""Averages over LongBench where a task has no data: none, but in a smoke run over those that are there."""

import pytest

from kvbench.papers.item import Item, Layout
from kvbench.papers.numbers import averages, places
from kvbench.tasks.longbench_averages import weights
from tests.papers.made_up import placed

LINE = Item("x/y", "t", settings=("policy=h2o_obcache",), layout=Layout(average="lava"))
TABLE = Item("x/y", "t", settings=("policy=h2o_obcache",), layout=Layout(cols=("task",), average="lava"))
MEANS = {name: place / 100 for place, name in enumerate(weights("lava"))}


def cells(item, left_out):
    at = {"policy": "h2o_obcache", "score": "attn", "budget": "64"}
    return [
        placed(tuple((at | {"task": name})[key] for key in item.keys), f"longbench/{name}", mean)
        for name, mean in MEANS.items()
        if name != left_out
    ]


@pytest.mark.parametrize(("item", "compute_averages"), [(LINE, places), (TABLE, averages)], ids=["figure", "table"])
def test_an_average_without_a_task_is_one_of_a_smoke_run_alone(item, compute_averages):
    whole = [average.mean for average in compute_averages(item, cells(item, None)).values()]
    assert whole == pytest.approx([sum(MEANS.values()) / len(MEANS)])
    short = cells(item, "samsum")
    assert compute_averages(item, short) == {}
    (average,) = compute_averages(item, short, True).values()
    assert average.mean == pytest.approx((sum(MEANS.values()) - MEANS["samsum"]) / (len(MEANS) - 1))
    assert average.n == len(MEANS) - 1
