"""Readers that give each pair, or each page of consecutive pairs, a number for a query, and read the highest."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kvbench.eviction.budget import FractionBudget
from kvbench.extras.readers.reader import MOST, Keys, Queries, Read, SparseReader
from kvbench.support.annotations import Help, Range
from kvbench.support.errors import UserError

PageScores = Float[Tensor, "segments group pages"]
Pages = Float[Tensor, "segments pages page head_dim"]


@dataclass(frozen=True)
class TopReader(SparseReader):
    """Base class: each query reads the `budget` pairs of its head with the highest scores, those always read included.

    A budget of all that a head holds, or more, reads all of it. Of equal scores the older pair comes first.
    """

    budget: Annotated[
        int | float,
        Help("KV pairs that a query reads per head: a number (64), or a fraction of those that the head holds (0.1)"),
    ] = 0.1
    sink: Annotated[int, Help("the oldest pairs of a head, always read, a part of the budget"), Range(0, MOST)] = 0
    recent: Annotated[int, Help("the newest pairs of a head, always read, a part of the budget"), Range(0, MOST)] = 0
    selection: Annotated[
        Literal["query_heads", "kv_heads"],
        Help("each query head chooses for itself, or the query heads of a KV head together by the sum of their scores"),
    ] = "query_heads"

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = isinstance(self.budget, int)
        if isinstance(self.budget, bool) or not (self.budget >= 1 if is_number else 0 < self.budget <= 1):
            raise UserError(
                f"reader.budget={self.budget}: allowed: KV pairs per head, 1 or more (64), or a fraction of those that "
                "a head holds in (0, 1] with a dot (0.1)"
            )
        if is_number and self.budget < self.sink + self.recent:
            raise UserError(
                f"reader.budget={self.budget} is less than the {self.sink + self.recent} pairs that reader.sink and "
                "reader.recent always read: use a larger budget, or smaller ones of these"
            )

    @property
    def page_pairs(self) -> int:
        """Pairs that are read together."""
        return 1

    def pairs_of(self, held: int) -> int:
        """Return the budget of a query whose head holds `held` pairs; a fraction is rounded half up, to at least
        one.
        """
        return self.budget if isinstance(self.budget, int) else FractionBudget(Decimal(str(self.budget))).of(held)

    def pages_of(self, pairs: int) -> int:
        """Return the pages of a budget of `pairs`."""
        return pairs

    @abstractmethod
    def scores(self, queries: Queries, keys: Keys, prefix: int) -> PageScores:
        """Return a number for each page of the keys and each query."""

    def to_share(self, scores: PageScores) -> PageScores:
        """Return what heads of a group add up to choose together (`selection=kv_heads`): by default their scores."""
        return scores

    @abstractmethod
    def index_of(self, held: int, head_dim: int, group: int) -> int:
        """`index_numbers` where something is to choose."""

    def index_numbers(self, held: int, head_dim: int, group: int) -> int:
        return self.index_of(held, head_dim, group) if self.pairs_of(held) < held else 0

    def read(self, queries: Queries, keys: Keys, prefix: int) -> Read:
        num_pairs = keys.shape[1]
        budget = self.pairs_of(num_pairs)
        if budget >= num_pairs:
            return queries.new_ones(*queries.shape[:2], num_pairs).bool()
        scores = self.scores(queries, keys, prefix)
        if self.selection == "kv_heads":
            scores = self.to_share(scores).sum(dim=1, keepdim=True).expand(scores.shape)
        pages = scores.shape[2]
        oldest = math.ceil(self.sink / self.page_pairs)
        newest = max(oldest, (num_pairs - self.recent) // self.page_pairs) if self.recent else pages
        scores = scores.clone()
        scores[..., :oldest] = torch.inf
        scores[..., newest:] = torch.inf
        count = max(self.pages_of(budget), min(oldest, pages) + max(0, pages - newest))
        best = scores.argsort(dim=-1, descending=True, stable=True)[..., :count]
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        return chosen.repeat_interleave(self.page_pairs, dim=-1)[..., :num_pairs]


@dataclass(frozen=True)
class PageReader(TopReader):
    """Base class: pages of `page` consecutive pairs of a head, in the order of its cache; the newest may be incomplete.

    budget: its whole pages, at least `least_pages`. A page that has a pair that is always read is read as a whole.
    """

    page: Annotated[int, Help("KV pairs of a page"), Range(1, MOST)] = 16
    least_pages: Annotated[int, Help("pages that are read however small the budget is"), Range(1, MOST)] = 1

    @property
    def page_pairs(self) -> int:
        return self.page

    def pages_of(self, pairs: int) -> int:
        return max(self.least_pages, pairs // self.page)

    def paged(self, keys: Keys, filling: float) -> Pages:
        """Return the keys by page, the newest page filled up."""
        return F.pad(keys, (0, 0, 0, -keys.shape[1] % self.page), value=filling).unflatten(1, (-1, self.page))
