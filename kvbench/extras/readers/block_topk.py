"""Pages by their mean key."""

from dataclasses import dataclass

import torch

from kvbench.extras.readers.reader import Keys, Queries
from kvbench.extras.readers.top import PageReader, PageScores


@dataclass(frozen=True)
class BlockTopK(PageReader):
    """The logit of the mean key of a page.

    The gate of MoBA (Lu et al. 2025, https://arxiv.org/abs/2502.13189, equation 6), which always reads the page of the
    query. MoBA trains a model with it and also reads prompts by it; here the model is as it is, and the prompt is read
    densely. A mean of `head_dim` numbers per page is read to choose.
    """

    name: str = "block_topk"

    def scores(self, queries: Queries, keys: Keys, prefix: int) -> PageScores:
        sums, pages = self.paged(keys, 0.0).sum(dim=2), -(-keys.shape[1] // self.page)
        sizes = torch.full((pages, 1), self.page, dtype=keys.dtype, device=keys.device)
        sizes[-1] = keys.shape[1] - (pages - 1) * self.page
        return queries @ (sums / sizes).mT

    def index_of(self, held: int, head_dim: int, group: int) -> int:
        return head_dim * -(-held // self.page)
