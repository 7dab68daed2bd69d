"""Pages: the blocks of tokens in which engines allocate KV caches, and in which they keep or drop them.

Page p holds the tokens p * size to (p + 1) * size - 1, so the last page may be partly filled. An eviction by pages is
one by tokens with pages in their place: the best pages are kept, and budgets, protected pairs and shares count pages.
A partly filled page counts like a full one, because an engine allocates all of it.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.shapes import Kept, Ranked
from kvbench.eviction.ranking import Ranking

Merge = Literal["mean", "max"]
"""How several scores become one."""


@dataclass(frozen=True)
class Pages:
    """The pages of a prompt of `tokens` tokens. sink, newest: first and newest tokens that are always kept, and with
    them the pages that they touch. merge: what the score of a page is of the scores of its tokens.
    """

    size: int
    tokens: int
    sink: int
    newest: int
    merge: Merge

    @property
    def number(self) -> int:
        """Pages that the prompt fills, the last one perhaps in part."""
        return -(-self.tokens // self.size)

    @property
    def first(self) -> int:
        """First pages that are always kept."""
        return min(self.number, -(-self.sink // self.size))

    @property
    def last(self) -> int:
        """Newest pages that are always kept, beside the first ones."""
        touched = self.number - max(0, self.tokens - self.newest) // self.size if self.newest else 0
        return min(touched, self.number - self.first)

    def ranking(self, by_token: Ranking) -> Ranking:
        """The ranking of the pages that no protected token touches, by the scores of their tokens."""
        if self.size == 1:
            return by_token
        first, stop = self.first * self.size, min(self.tokens, (self.number - self.last) * self.size)

        def merged(scores: Ranked) -> Float[Tensor, "cache_heads pages"]:
            return self._merged(scores[:, first - by_token.first : max(first, stop) - by_token.first])

        by_page = replace(by_token.mapped(merged), first=self.first)
        if by_page.second is None or not by_page.second.protected:
            return by_page
        return replace(by_page, second=replace(by_page.second, protected=self.first + self.last))

    def kept_tokens(self, kept: Bool[Tensor, "cache_heads pages"]) -> Kept:
        """The tokens of the pages that are kept."""
        return kept if self.size == 1 else kept.repeat_interleave(self.size, dim=1)[:, : self.tokens]

    def _merged(self, scores: Ranked) -> Float[Tensor, "cache_heads pages"]:
        """The score of each page from those of its tokens; the last page may have fewer."""
        filling = -scores.shape[1] % self.size
        if self.merge == "max":
            return F.pad(scores, (0, filling), value=-torch.inf).unflatten(1, (-1, self.size)).amax(dim=2)
        sums = F.pad(scores, (0, filling)).unflatten(1, (-1, self.size)).sum(dim=2)
        held = torch.full_like(sums[0], self.size)
        held[-1:] -= filling
        return sums / held
