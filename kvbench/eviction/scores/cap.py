"""CapKV: how much a pair adds to the directions that the values of a head span, weighed by the queries ahead.

CapKV (https://arxiv.org/abs/2604.25975), as in `CapPress` of kvpress.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvbench.cache.future_queries import FutureQueries, find_statistics
from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Ranked, Scores
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.support.errors import UserError

COLUMN_CHUNK = 4096
"""Columns whose quadratic forms are taken at a time."""
EPSILON = 1e-6
"""Added to the weights within A."""


@dataclass(frozen=True)
class Cap(Score):
    """w_j v_j.A^-1 v_j with A = I + sum_k w_k v_k v_k^T and w_j = exp(tau (cos(m, k_j) - largest cosine of the head)).

    m is the mean of the queries that are expected at the next `future` positions. The first `sink` tokens are left out
    of m and A, and score as much as the best pair of the layer. normalize: False takes the product m.k_j instead of the
    cosine, as the paper does. Raises UserError for a prompt of at most `sink` tokens.
    """

    tau: int | float = 5.0
    sink: int = 4
    future: int = 512
    normalize: bool = True
    name: str = "cap"

    def __post_init__(self) -> None:
        FutureQueries(self.sink, self.future)
        if not self.tau >= 0:
            raise UserError(f"score.tau={self.tau}: a factor of 0 or more, e.g. 5.0")

    @property
    def inputs(self) -> ScoreInputs:
        return ScoreInputs(future_queries=FutureQueries(self.sink, self.future))

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        if layer.lengths[0] <= self.sink:
            raise UserError(f"score {self.name} leaves out {self.sink} tokens, and there are {layer.lengths[0]}")
        queries = find_statistics(layer.future_queries, FutureQueries(self.sink, self.future)).mean.float()
        keys, values = (part[:, self.sink :] for part in layer.dense)
        by_member = [
            self._leverage(keys, values, member)
            for member in queries.view(keys.shape[0], -1, keys.shape[2]).unbind(dim=1)
        ]
        scores = torch.stack(by_member, dim=1).flatten(0, 1)
        return torch.cat((scores.new_zeros(scores.shape[0], self.sink), scores), dim=1)

    def _leverage(self, keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor) -> Scores:
        """The score of each column for one query head of each KV head, whose expected query is `query`."""
        along = [self._along(part.float(), query) for part in keys.split(COLUMN_CHUNK, dim=1)]
        logits = self.tau * torch.cat(along, dim=1)
        weights = (logits - logits.amax(dim=1, keepdim=True)).exp()
        chunks = list(zip(values.split(COLUMN_CHUNK, dim=1), weights.split(COLUMN_CHUNK, dim=1), strict=True))
        capacity = torch.eye(values.shape[2], device=values.device).repeat(values.shape[0], 1, 1)
        for part, weight in chunks:
            scaled = part.float() * (weight + EPSILON).sqrt()[..., None]
            capacity += scaled.mT @ scaled
        factor = torch.linalg.cholesky_ex(capacity)[0]  # NaN is refused by name once all layers are ranked
        forms = [torch.linalg.solve_triangular(factor, part.float().mT, upper=False) for part, _ in chunks]
        return weights * torch.cat([form.square().sum(dim=1) for form in forms], dim=1)

    def _along(self, keys: torch.Tensor, query: torch.Tensor) -> Scores:
        if self.normalize:
            keys, query = F.normalize(keys, dim=-1), F.normalize(query, dim=-1)
        return (keys @ query[..., None])[..., 0]

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        lifted = shaped.clone()
        if shaped.shape[1]:
            lifted[:, : self.sink] = shaped.max()
        return lifted
