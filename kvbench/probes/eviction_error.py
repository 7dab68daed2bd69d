"""The share of the true eviction error that belongs to the KV pairs that a cell evicts.

The true error is that of OBCache's Figure 2 (`kvbench.probes.query.removal_errors`): each pair removed alone, at
the first decoded token. Recall counts the best k pairs alike; this probe weights each pair by its error.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvbench.eviction.evict import cache_heads
from kvbench.probes.probe import Measured, Probe
from kvbench.probes.query import Output
from kvbench.probes.scene import Scene
from kvbench.run.plan import Cell


@dataclass(frozen=True)
class EvictionError(Probe):
    """By cache head: `total`, the sum of the errors of all pairs; `lost`, that of the pairs that the cell evicts;
    `lost_share` = lost / total, and `best_share`, the smallest share that as many pairs of that head can have.

    output: the change of the `attention` output (|o' - o|^2 over the query heads that read the pair) or of the output
    of the `layer`. positions: one more row per pair, `error` with its position.
    """

    output: Output = "attention"
    positions: bool = False
    name: str = "eviction_error"
    judges_scores: ClassVar[bool] = False
    by: ClassVar[tuple[str, ...]] = ("layer", "quantity")

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Errors and their shares; a share is None if no pair has an error."""
        for layer, kept in zip(scene.layers, scene.decide(cell).kept, strict=True):
            errors = scene.errors(layer, cache_heads(layer, cell.policy), self.output)
            evicted = ~kept.to(errors.device)
            totals, lost = errors.sum(dim=1).tolist(), (errors * evicted).sum(dim=1).tolist()
            ordered = errors.sort(dim=1).values
            for head, (total, gone) in enumerate(zip(totals, lost, strict=True)):
                least = float(ordered[head, : int(evicted[head].sum())].sum())
                shares = (gone / total, least / total) if total else (None, None)
                values = {"total": total, "lost": gone, "lost_share": shares[0], "best_share": shares[1]}
                for quantity, value in values.items():
                    yield Measured(layer=layer.index, quantity=quantity, value=value, head=head)
            if self.positions:
                for head, row in enumerate(errors.tolist()):
                    for position, value in enumerate(row):
                        yield Measured(layer=layer.index, quantity="error", value=value, head=head, position=position)
