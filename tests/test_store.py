"""`store=int4` and the other quantised stores: cells of their own, and what they are refused with."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvbench.eviction.schedule import Schedule
from kvbench.extras.stores.packed import Packed
from kvbench.run.cell import Cell
from kvbench.run.plan import plan
from kvbench.tasks.likelihood import PG19
from tests.run.test_prefill_job import SNAPKV, cells
from tests.steps import with_steps


def test_a_flat_cell_is_named_as_before_there_was_a_choice() -> None:
    (cell,) = cells()
    assert "store" not in cell.description
    assert cell.with_method(holder=Packed("int4")).description == cell.description | {"store": "int4"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            lambda cell: replace(cell, schedule=Schedule(decode_every=2)),
            "schedule.decode_every=2 evicts from the answer too",
        ),
        (
            lambda cell: replace(cell, schedule=Schedule(prefill_block=8)),
            "schedule.prefill_block=8 evicts while the prompt is read",
        ),
        (
            lambda cell: cell.with_method(policy=with_steps(SNAPKV, positions="cache")),
            "policy.positions=cache .* rotates the keys",
        ),
        (lambda cell: replace(cell, task=PG19(context_length=9)), "task pg19 evicts while it reads"),
    ],
)
def test_what_a_store_cannot_hold_is_refused(changed: Callable[[Cell], Cell], reason: str) -> None:
    """A copy is packed once, after the eviction of the prompt."""
    (_, cell) = cells("0.3", evict_after="prompt")
    with pytest.raises(ValueError, match=f"store=int4 is quantized once, after eviction, but {reason}"):
        plan([changed(cell.with_method(holder=Packed("int4")))], set())
