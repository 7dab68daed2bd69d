"""The interface of a probe: the cells that it can judge, the inputs that it needs, and the numbers that it measures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import ClassVar, Protocol, runtime_checkable

from kvbench.eviction.budget import FractionBudget
from kvbench.extras.probes.scene import Scene
from kvbench.run.cell import Cell
from kvbench.support.errors import UserError

EVERYTHING = FractionBudget(Decimal(1))
"""The budget of cells whose budget does not matter."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One number of a layer and, depending on the quantity, of a head, window, number of recent tokens or position.

    `value` is None if the quantity is not defined, such as a correlation with scores that are all equal.
    """

    layer: int
    quantity: str
    value: float | None
    head: int | None = None
    window: int | None = None
    recent: int | None = None
    position: int | None = None


@runtime_checkable
class Probe(Protocol):
    """A frozen dataclass; it inherits from this class and overrides what differs.

    by: columns that a printed table keeps apart besides the cells; all others are averaged within a sample.
    across: the column whose values are the columns of a text table.
    judges_scores: whether the policy must take a score. reads_budget: whether the numbers depend on the budget.
    """

    by: ClassVar[tuple[str, ...]] = ()
    across: ClassVar[str] = "quantity"
    judges_scores: ClassVar[bool] = True
    reads_budget: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name on the command line and in rows."""
        ...

    def judged(self, cell: Cell) -> Cell:
        """Return the cell without what does not matter: a prompt, one eviction after it, and a score if scores are
        judged.

        Raises UserError for a cell that the probe cannot judge.
        """
        if cell.task.scores_text:
            raise UserError(f"task {cell.task.name} has no question: a probe needs a task with prompts and answers")
        if cell.schedule.prefill_block is not None:
            raise UserError(
                f"schedule.prefill_block={cell.schedule.prefill_block}: a probe needs the full cache; use "
                "schedule.prefill_block=null"
            )
        if self.judges_scores and "score" not in cell.policy.accepts:
            raise UserError(
                f"policy {cell.policy.name} takes no score, but {self.name} measures scores: choose another, "
                "e.g. policy=plain"
            )
        cell = replace(
            cell, schedule=replace(cell.schedule, decode_every=None, answer_budget=None)
        )  # those come after the first step
        return cell if self.reads_budget else cell.with_method(budget=EVERYTHING)

    def read_for(self, cell: Cell) -> tuple[Cell, ...]:
        """Cells whose inputs must be recorded. Raises UserError for a score that cannot have them."""
        return (cell,)

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Return the numbers of one cell on one sample. Raises UserError if the sample does not allow them."""
        ...
