"""Quest: pages by an upper bound of their logits."""

from dataclasses import dataclass

import torch

from kvbench.extras.readers.reader import Keys, Queries
from kvbench.extras.readers.top import PageReader, PageScores


@dataclass(frozen=True)
class Quest(PageReader):
    """sum_c max(q_c min_c, q_c max_c) of a page, where min_c and max_c are the least and the largest number that its
    keys have in channel c: no logit q.k of the page is larger.

    Quest (Tang et al. 2024, https://arxiv.org/abs/2406.10774, section 3.2). Two numbers per channel and page are read
    to choose.
    """

    name: str = "quest"

    def scores(self, queries: Queries, keys: Keys, prefix: int) -> PageScores:
        least, most = self.paged(keys, torch.inf).amin(dim=2), self.paged(keys, -torch.inf).amax(dim=2)
        return queries.clamp(min=0) @ most.mT + queries.clamp(max=0) @ least.mT

    def index_of(self, held: int, head_dim: int, group: int) -> int:
        return 2 * head_dim * -(-held // self.page)
