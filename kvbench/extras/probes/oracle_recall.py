"""Recall of the KV pairs whose removal changes the first decoded token most, by the window of the score.

OBCache (Gu et al.), Figure 2 and section 3.5: the oracle removes each pair of the prompt alone and measures how far the
first decoded output moves; a score should find its top k. Figure 2a is `recents=[0]`; 2b keeps the newest 20
inside the k. With k = 40, no pooling and one cache a query head it is the figure's protocol.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.shapes import Kept, Ranked
from kvbench.eviction.evict import cache_heads, check_host, rank_columns
from kvbench.eviction.ranking import Ranking, best_first
from kvbench.extras.probes.probe import Measured, Probe
from kvbench.extras.probes.query import Output
from kvbench.extras.probes.scene import Scene
from kvbench.run.cell import Cell
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class OracleRecall(Probe):
    """|top k of the score  and  top k of the oracle| / k, by cache head; k is the budget in pairs.

    windows: how many of the newest rows the score reads; `all` is every row. Windows longer than a prompt are left out.
    recents: how many of the newest tokens are always kept inside k. The policy shapes scores (pool, group, order,
    layout); its window, its protected tokens and its split of the budget do not matter.
    """

    windows: Annotated[
        tuple[int | Literal["all"], ...], Help("how many of the newest rows the score reads, or all")
    ] = (1, 4, 16, 64, 256)
    recents: Annotated[
        tuple[int, ...], Help("newest tokens that are kept inside the budget whatever the score says: Fig. 2a, 2b")
    ] = (0, 20)
    output: Annotated[
        Output, Help("attention: the outputs of the query heads that read the pair; layer: the output of the layer")
    ] = "attention"
    name: str = "oracle_recall"
    by: ClassVar[tuple[str, ...]] = ("recent", "window")
    across: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        for name, least in (("windows", 1), ("recents", 0)):
            values = getattr(self, name)
            if not values or any(value != "all" and value < least for value in values):
                raise UserError(f"probe.{name}={list(values)}: allowed: a list of integers, each {least} or more")

    def judged(self, cell: Cell) -> Cell:
        policy = replace(cell.policy, window=self.windows[0], sink=0, recent=0, window_skips=0, budget_span="prompt")
        return super().judged(cell.with_method(policy=policy))

    def read_for(self, cell: Cell) -> tuple[Cell, ...]:
        cells = tuple(cell.with_method(policy=replace(cell.policy, window=window)) for window in self.windows)
        for windowed in cells:
            check_host(windowed.policy, windowed.score)
        return cells

    def measure(self, scene: Scene, cell: Cell) -> Iterator[Measured]:
        """Recall of every cache head. Raises UserError for a budget below the recent tokens."""
        pairs = min(cell.budget.of(scene.tokens), scene.tokens)
        if pairs < max(self.recents):
            raise UserError(
                f"budget={cell.budget} keeps {pairs} KV pairs, fewer than probe.recents={max(self.recents)}"
            )
        for layer in scene.inputs(cell.score).evictable:
            errors = scene.errors(layer, cache_heads(layer, cell.policy), self.output)
            best = top(errors, errors, pairs)
            for window, windowed in zip(self.windows, self.read_for(cell), strict=True):
                if window != "all" and window > scene.tokens:
                    continue
                policy, score = windowed.policy, windowed.score
                rows = layer.observed(policy.rows(scene.tokens)) if score.inputs.window else None
                raw = score(layer, rows, policy.reduce)
                if not raw.isfinite().all():
                    raise UserError(f"score {score.name} of layer {layer.index} is not finite")
                length = scene.tokens if window == "all" else window
                for recent in self.recents:
                    ranking = rank_columns(raw, layer, replace(policy, recent=recent), score)
                    recalls = recall(chosen(ranking, pairs, recent, scene.tokens), best)
                    for head, value in enumerate(recalls.tolist()):
                        yield Measured(
                            layer=layer.index, quantity="recall", value=value, head=head, window=length, recent=recent
                        )


def top(scores: Ranked, unpooled: Ranked, pairs: int) -> Kept:
    """Return True for the best `pairs` columns of every head."""
    kept = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    return kept.scatter_(1, best_first(scores, unpooled)[:, :pairs], True)


def chosen(ranking: Ranking, pairs: int, recent: int, tokens: int) -> Kept:
    """Return the columns that a score keeps: the newest `recent`, and its best candidates in the rest of `pairs`."""
    kept = torch.zeros(ranking.scores.shape[0], tokens, dtype=torch.bool, device=ranking.scores.device)
    kept[:, max(0, tokens - recent) :] = True
    order = ranking.order_for(torch.full(kept.shape[:1], pairs - recent))
    kept.scatter_(1, ranking.first + order[:, : pairs - recent], True)
    return kept


def recall(kept: Kept, best: Kept) -> Float[Tensor, "cache_heads"]:
    """Return the share of the wanted columns of each head that were kept."""
    return (kept & best).sum(dim=1).double() / best.sum(dim=1)
