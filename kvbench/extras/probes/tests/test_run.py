"""Samples that cannot be measured: each is a row with its reason, for every cell."""

from collections.abc import Callable

from kvbench.extras.probes.rankings import HeadScores
from kvbench.extras.probes.run import _measured, probing
from kvbench.extras.probes.tests.conftest import World
from kvbench.run.cell import Cell
from kvbench.tasks.task import InvalidSample


def test_a_spoilt_row_of_data_is_an_error_of_its_sample(world: World, make_cell: Callable[..., Cell]) -> None:
    request = probing(HeadScores(), [make_cell(), make_cell(window=5)])
    sample = InvalidSample(3, "questions", "data.jsonl:4: no JSON")
    measured = list(_measured(world.scene.model, sample, request.cells, request.probe))
    assert [cell.id for cell, _, _ in measured] == [cell.id for cell in request.cells]
    assert all(numbers == [{"error": "data.jsonl:4: no JSON"}] for _, _, numbers in measured)
