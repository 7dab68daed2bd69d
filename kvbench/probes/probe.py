"""What every probe offers: which cells it can judge, what must be read for it, and the numbers it finds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import ClassVar, Protocol, runtime_checkable

from kvbench.eviction.budget import Fraction
from kvbench.probes.scene import Scene
from kvbench.run.plan import Cell
from kvbench.support.errors import UserError
from kvbench.tasks.likelihood import Likelihood

EVERYTHING = Fraction(Decimal(1))
"""The budget of cells whose budget plays no part."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One number: of a layer, and where it is one, of a head, a window, a number of recent tokens, a position.

    `value` is None where the quantity is not defined, such as a correlation with scores that are all equal.
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

    by: columns that a printed table keeps apart beside what was asked; all others are averaged within a sample.
    across: the one of them whose values are the columns of a text table.
    judges_scores: whether a policy without a score makes no sense. reads_budget: whether budgets matter.
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
        """The cell without what plays no part. Raises ValueError for one that the probe cannot judge."""
        return judged(self, cell)

    def read_for(self, cell: Cell) -> tuple[Cell, ...]:
        """Cells whose evidence must be recorded. Raises ValueError for a score that cannot have it."""
        return (cell,)

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """The numbers of one cell on one sample. Raises ValueError for what the sample cannot do."""
        ...


def judged(probe: Probe, cell: Cell) -> Cell:
    """What every probe asks of a cell: a prompt, an uncut cache, and a score where scores are judged."""
    if isinstance(cell.task, Likelihood):
        raise UserError(f"task {cell.task.name} asks nothing: a probe looks at the step after a prompt")
    if cell.schedule.prefill_block is not None:
        raise UserError(
            f"schedule.prefill_block={cell.schedule.prefill_block}: a probe looks at a cache that nothing was taken "
            "from yet; use schedule.prefill_block=null"
        )
    if probe.judges_scores and "score" not in cell.policy.takes:
        raise UserError(
            f"policy {cell.policy.name} takes no score, but {probe.name} judges scores: choose another, e.g. plain"
        )
    cell = replace(cell, schedule=replace(cell.schedule, decode_every=None))  # later cuts come after the first step
    return cell if probe.reads_budget else replace(cell, budget=EVERYTHING)
