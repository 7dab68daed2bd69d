"""How much of the true eviction error stands on the pairs that a cell evicts.

The true error is that of OBCache's Figure 2 (`kvbench.probes.removal`): each pair removed alone, the first decoded
token watched. Where recall counts the best k alike, this weighs each pair by what its removal does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvbench.eviction.evict import cache_heads
from kvbench.probes.probe import Measured, Probe
from kvbench.probes.removal import Output, check_output
from kvbench.probes.scene import Scene
from kvbench.run.plan import Cell


@dataclass(frozen=True)
class EvictionError(Probe):
    """By stored head: `total`, the sum of the errors of all pairs; `lost`, that of the pairs that the cell evicts;
    `lost_share` = lost / total, and `best_share`, what it would be at least for as many pairs of that head.

    output: the change of the `attention` output (|o' - o|^2 over the query heads that read the pair) or of the output
    of the `layer`. positions: one more row a pair, `error` with its position, for pictures and questions of one's own.

    Raises ValueError for another output.
    """

    output: Output = "attention"
    positions: bool = False
    name: str = "eviction_error"
    judges_scores: ClassVar[bool] = False
    by: ClassVar[tuple[str, ...]] = ("layer", "quantity")

    def __post_init__(self) -> None:
        check_output(self.output)

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Errors and their shares; a share is None where nothing hurts at all."""
        for layer, kept in zip(scene.layers, scene.decide(cell).kept, strict=True):
            errors = scene.errors(layer, cache_heads(layer, cell.policy), self.output)
            evicted = ~kept.to(errors.device)
            totals, lost = errors.sum(dim=1).tolist(), (errors * evicted).sum(dim=1).tolist()
            ordered = errors.sort(dim=1).values
            for head, (total, gone) in enumerate(zip(totals, lost, strict=True)):
                least = float(ordered[head, : int(evicted[head].sum())].sum())
                shares = (gone / total, least / total) if total else (None, None)
                for quantity, value in zip(_QUANTITIES, (total, gone, *shares), strict=True):
                    yield Measured(layer=layer.index, quantity=quantity, value=value, head=head)
            if self.positions:
                for head, row in enumerate(errors.tolist()):
                    for position, value in enumerate(row):
                        yield Measured(layer=layer.index, quantity="error", value=value, head=head, position=position)


_QUANTITIES = ("total", "lost", "lost_share", "best_share")
