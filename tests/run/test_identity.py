"""Names of cells: what their descriptions say, however they are put together."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from decimal import Decimal

import pytest

from kvbench.eviction.allocation.heads import MixHeads
from kvbench.eviction.budget import FractionBudget
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.host import Caote
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.extras.merging.merging import D2O
from kvbench.extras.pages.pages import Pages
from kvbench.extras.sharing.sharing import Sharing
from kvbench.extras.stores.packed import Packed
from kvbench.models.loading.spec import describe_model
from kvbench.run.cell import Cell
from tests.run.test_prefill_job import cells


def written_out(cell: Cell) -> str:
    """The name of a cell from one object, dumped at once."""
    step = {"positions": "original"}  # named without the step too
    whole = {
        "model": describe_model(cell.model),
        "task": cell.task.described(),
        "policy": {name: value for name, value in asdict(cell.policy).items() if name != "steps"} | step,
        "score": {"name": cell.score.name} | asdict(cell.score),  # type: ignore[call-overload]
        "budget": str(cell.budget),
        "schedule": asdict(cell.schedule),
        "seed": cell.seed,
    }
    whole |= {} if cell.held.store == "flat" else {"store": cell.held.store}
    text = json.dumps(whole | {"plugins": cell.description["plugins"]}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "changed",
    [
        lambda cell: cell,
        lambda cell: cell.with_method(holder=Packed("int4")),
        lambda cell: cell.with_method(score=OBCacheJoint()),
        lambda cell: cell.with_method(budget=FractionBudget(Decimal("0.25"))),
        lambda cell: replace(cell, schedule=Schedule("context", 32, 4)),
        lambda cell: replace(cell, seed=7),
    ],
)
def test_a_name_is_the_hash_of_the_whole_description(changed: Callable[[Cell], Cell]) -> None:
    cell = changed(cells("0.3")[1])
    assert cell.id == written_out(cell) == written_out(replace(cell))
    assert cell.description["budget"] == str(cell.budget) and cell.description["seed"] == cell.seed


def test_a_description_names_every_field_that_numbers_depend_on() -> None:
    """Defaults are named too: a default that changes renames the cells that have it."""
    cell = cells("0.3")[1].with_method(score=Caote())
    description = cell.description
    parts = {"policy": cell.policy, "schedule": cell.schedule, "score": cell.score, "task": cell.task}
    beside = {"policy": {"steps"}, "task": {"samples"}}
    for name, part in parts.items():
        missing = {field.name for field in fields(part)} - description[name].keys()
        assert missing == beside.get(name, set()), name


def test_steps_are_named_beside_the_fields_of_a_policy() -> None:
    cell = cells("0.3")[1]
    assert not {"steps", "page", "share", "apply"} & cell.description["policy"].keys()
    paged = cell.with_method(policy=replace(cell.policy, steps=(Pages(16), Sharing("layer"))))
    assert paged.description["policy"] == cell.description["policy"] | {"page": 16, "share": "layer"}
    merging = cell.with_method(policy=replace(cell.policy, steps=(D2O(),)))
    assert merging.description["policy"] == cell.description["policy"] | {"apply": asdict(D2O())}


def test_how_it_runs_is_no_part_of_a_name() -> None:
    cell = cells("0.3")[1]
    assert replace(cell, model=replace(cell.model, max_batch=3, threads=2, device="cpu")).id == cell.id
    with pytest.raises(ValueError, match=r"model\.max_batch=0: allowed: 1 to 4096"):
        replace(cell.model, max_batch=0)


def test_parts_that_are_equal_but_written_otherwise_have_names_of_their_own() -> None:
    """1 and 1.0 are equal and hash alike."""
    cell = cells("0.3")[1]
    whole, real = (cell.with_method(policy=replace(cell.policy, heads=MixHeads(alpha=alpha))) for alpha in (1, 1.0))
    assert whole.policy == real.policy and whole.id != real.id
    assert (whole.id, real.id) == (written_out(whole), written_out(real))
