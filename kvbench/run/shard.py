"""A part of a plan, for a process that is to make no more than that."""

from dataclasses import dataclass, replace

from kvbench.run.plan import Plan
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `of`, counted from 0, of the prompts of every model; or of one, by its place in the plan.

    Which prompts a shard has depends on nothing but their number: not on what is done, nor on other cells.
    """

    index: int
    of: int
    model: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise UserError(f"shard {self.index + 1}/{self.of}: legal: 1/N to N/N")


def part_of(plan: Plan, part: Shard) -> Plan:
    """The plan with what is to do in a part alone. Cells are all there: a plan says what the whole sweep is."""
    models = list(dict.fromkeys(group.model for group in plan.groups))
    wanted = models if part.model is None else [models[part.model]]
    return Plan(
        tuple(
            replace(
                group,
                units=tuple(unit for unit in group.units if unit.key % part.of == part.index)
                if group.model in wanted
                else (),
            )
            for group in plan.groups
        )
    )


def parts(plan: Plan, shards: int) -> list[Shard]:
    """The parts of a plan in which something is to do, when the samples of each model are divided into shards."""
    models = list(dict.fromkeys(group.model for group in plan.groups))
    found = (Shard(index, shards, model) for model in range(len(models)) for index in range(shards))
    return [part for part in found if part_of(plan, part).rows_to_do]
