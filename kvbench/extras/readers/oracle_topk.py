"""The pairs with the largest logits: what readers approximate."""

from dataclasses import dataclass

from kvbench.extras.readers.reader import Keys, Queries
from kvbench.extras.readers.top import PageScores, TopReader


@dataclass(frozen=True)
class OracleTopK(TopReader):
    """The logit q.k of each pair, before a soft cap: of all sets of `budget` pairs, the one with the most attention.

    With `selection=kv_heads` the query heads of a group add up the softmax of their logits, so that the set of a KV
    head is the one with the most attention of all of them, where the model has neither soft cap nor learned sinks. All
    keys are read to choose: an upper bound, which saves nothing.
    """

    name: str = "oracle_topk"

    def scores(self, queries: Queries, keys: Keys, prefix: int) -> PageScores:
        return queries @ keys.mT

    def to_share(self, scores: PageScores) -> PageScores:
        return scores.softmax(dim=-1)

    def index_of(self, held: int, head_dim: int, group: int) -> int:
        return head_dim * held
