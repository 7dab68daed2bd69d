"""Pages: the blocks of tokens in which engines allocate KV caches, and in which they keep or drop them.

Page p holds the tokens p * size to (p + 1) * size - 1, so the last page may be partly filled. An eviction by pages is
one by tokens with pages in their place: the best pages are kept, and budgets, protected pairs and shares count pages.
A partly filled page counts like a full one, because an engine allocates all of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.shapes import Kept, Lengths, Ranked
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.ranking import Ranking
from kvbench.eviction.step import UNITS, Step, Units
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError
from kvbench.support.facts import EVEN_HEADS, EVEN_IN_LAYER, ONE_EVICTION, Claim
from kvbench.support.quantity import count_noun

Merge = Literal["mean", "max"]
"""How several scores become one."""


@dataclass(frozen=True)
class PageUnits(Units):
    """Pages of `size` tokens, kept or dropped as a whole; those that always kept tokens touch are kept.

    merge: what the score of a page is of the scores of its tokens.
    """

    size: int
    merge: Merge

    @property
    def number(self) -> int:
        """Pages that the prompt fills, the last one perhaps in part."""
        return -(-self.tokens // self.size)

    @property
    def first(self) -> int:
        return min(self.number, -(-self.sink // self.size))

    @property
    def last(self) -> int:
        touched = self.number - max(0, self.tokens - self.newest) // self.size if self.newest else 0
        return min(touched, self.number - self.first)

    def of_pairs(self, pairs: int) -> int:
        return pairs // self.size

    def lengths(self, counts: Lengths, kept: Sequence[Kept]) -> Lengths:
        return torch.stack([mask.sum(dim=1).cpu() for mask in kept])

    def check(self, pairs: int, name: str, subject: str) -> None:
        protected = self.first + self.last
        if self.of_pairs(pairs) < max(1, protected):
            raise UserError(too_few(self.size, name, protected, subject))

    def ranking(self, by_token: Ranking) -> Ranking:
        """Return the ranking of the pages that no protected token touches, by the scores of their tokens."""
        first, stop = self.first * self.size, min(self.tokens, (self.number - self.last) * self.size)

        def merged(scores: Ranked) -> Float[Tensor, "cache_heads pages"]:
            return self._merged(scores[:, first - by_token.first : max(first, stop) - by_token.first])

        by_page = replace(by_token.mapped(merged), first=self.first)
        if by_page.second is None or not by_page.second.protected:
            return by_page
        return replace(by_page, second=replace(by_page.second, protected=self.first + self.last))

    def kept_tokens(self, kept: Bool[Tensor, "cache_heads pages"]) -> Kept:
        """Return the tokens of the pages that are kept."""
        return kept.repeat_interleave(self.size, dim=1)[:, : self.tokens]

    def _merged(self, scores: Ranked) -> Float[Tensor, "cache_heads pages"]:
        """Return the score of each page from the scores of its tokens; the last page may have fewer."""
        filling = -scores.shape[1] % self.size
        if self.merge == "max":
            return F.pad(scores, (0, filling), value=-torch.inf).unflatten(1, (-1, self.size)).amax(dim=2)
        sums = F.pad(scores, (0, filling)).unflatten(1, (-1, self.size)).sum(dim=2)
        held = torch.full_like(sums[0], self.size)
        held[-1:] -= filling
        return sums / held


@dataclass(frozen=True)
class Pages(Step):
    """Pages of `page` tokens are kept or dropped as a whole. Raises UserError for a page below 1."""

    page: Annotated[
        int, Help("tokens of a page, which is kept or dropped as a whole, as an engine allocates it (16, 64, 256)")
    ] = 1
    page_score: Annotated[
        Merge, Help("the score of a page: the max or mean of the scores of its tokens, pooled and reduced")
    ] = "max"
    order: ClassVar[int] = UNITS

    def __post_init__(self) -> None:
        if isinstance(self.page, bool) or not isinstance(self.page, int):
            raise UserError(f"policy.page={self.page!r} is not an integer, e.g. 16")
        if self.page < 1:
            raise UserError(f"policy.page={self.page}: allowed: 1 or more tokens, e.g. 16")
        if self.page_score not in get_args(Merge):
            allowed = ", ".join(get_args(Merge))
            raise UserError(f"policy.page_score={self.page_score} is not allowed; allowed: {allowed}")

    @property
    def idle(self) -> bool:
        return self == Pages()

    def claims(self, policy: Any) -> Iterator[Claim]:
        if self.page > 1:
            once = {ONE_EVICTION: "is decided once, after the prompt"} if "budget" in policy.accepts else {}
            uneven = "lets only some heads keep the last page, which is partly filled (with policy.share=model all do)"
            breaks = dict.fromkeys((EVEN_IN_LAYER, EVEN_HEADS), uneven)
            yield Claim(f"{self.setting} of {policy.name}", "policy.page=1", once, breaks)

    def check_budget(self, policy: Any, budget: TokenBudget) -> None:
        sink = policy.sink if isinstance(policy.sink, int) and policy.budget_span == "prompt" else 0
        newest = sum(number for number in (policy.recent, policy.window_skips) if isinstance(number, int))
        least = -(-sink // self.page) - (-newest // self.page)  # wherever the prompt ends
        if self.page > 1 and budget.pairs // self.page < max(1, least):
            raise UserError(too_few(self.page, policy.name, least, f"budget={budget.counted}"))

    def units(self, units: Units) -> Units:
        if self.page == 1:
            return units
        return PageUnits(units.tokens, units.sink, units.newest, self.page, self.page_score)

    def unused_bytes(self, cache: Any) -> int:
        """Return bytes of the places for keys and values that partly filled pages leave empty, in every head that
        evicts.
        """
        if self.page == 1:
            return 0
        empty = 0
        for layer in cache.evictable:
            held = replace(cache, layers=(layer,)).bytes_held
            empty += held * sum(-length % self.page for length in layer.lengths) // max(1, sum(layer.lengths))
        return empty


def too_few(size: int, name: str, protected: int, subject: str) -> str:
    """Return the message for a budget below the pages that protected tokens touch, or below one."""
    least, why = max(1, protected), f" that protected tokens of {name} touch" if protected else ""
    return (
        f"{subject} cannot hold {count_noun(least, 'page')} of {size} tokens{why}: raise the budget to at least "
        f"{least * size} tokens, protect fewer, or use a smaller policy.page"
    )
