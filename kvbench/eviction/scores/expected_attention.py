"""Scores of the attention that later queries are expected to give: Expected Attention and CapKV.

Before rotation (RoPE) the queries of a head are distributed alike at every position. Their mean and covariance over the
prompt, rotated by the average rotation of the next positions, therefore describe later queries.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.kv_cache import FutureQueryStats, LayerCache, ObservationWindow, PredictedQueries
from kvbench.cache.shapes import Dense, Ranked, Scores
from kvbench.eviction.pooling import Weight
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.support.annotations import Help
from kvbench.support.errors import UserError

COLUMN_CHUNK = 4096
"""Columns whose quadratic forms are taken at a time."""
EPSILON = 1e-6
"""Added to the weights within CapKV's A."""


class FutureQueryScore(Score):
    """Base class of scores that read the queries expected at the next `future` positions.

    The first `sink` tokens are left out of all statistics, and score as much as the best pair of the layer. Raises
    UserError for a prompt of at most `sink` tokens.
    """

    sink: int
    future: int

    def __post_init__(self) -> None:
        PredictedQueries(self.sink, self.future)  # refuses what is out of range

    @property
    def inputs(self) -> ScoreInputs:
        return ScoreInputs(future_queries=PredictedQueries(self.sink, self.future))

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        statistics = layer.expected_queries(PredictedQueries(self.sink, self.future))
        if layer.lengths[0] <= self.sink:
            raise UserError(
                f"score {self.name} leaves out the first {self.sink} tokens, but the prompt has {layer.lengths[0]}: "
                "lower score.sink"
            )
        keys, values = (part[:, self.sink :] for part in layer.dense)
        scores = self.of_pairs(statistics, keys, values)
        return torch.cat((scores.new_zeros(scores.shape[0], self.sink), scores), dim=1)

    def of_pairs(self, statistics: FutureQueryStats, keys: Dense, values: Dense) -> Scores:
        """Return the scores of the pairs behind the first `sink`."""
        raise NotImplementedError

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        lifted = shaped.clone()
        lifted[:, : self.sink] = shaped.max()
        return lifted


@dataclass(frozen=True)
class ExpectedAttention(FutureQueryScore):
    """(softmax_j(m.k_j / sqrt(d) + k_j.C k_j / 2d) + epsilon) |v_j| with mean m and covariance C of the queries ahead.

    Devoto, Jeblick, Jégou 2025, https://arxiv.org/abs/2510.00636, as in `ExpectedAttentionPress` of kvpress: queries
    are taken as normally distributed, so that the expectation of exp(q.k) is exp of a mean and half a variance.
    """

    sink: Annotated[int, Help("first tokens that are left out of the statistics and always kept")] = 4
    future: Annotated[int, Help("number of future positions")] = 512
    covariance: Annotated[bool, Help("false: only the mean of the queries")] = True
    value_norm: Annotated[bool, Help("true: weights are multiplied by the norms of the values")] = True
    epsilon: Annotated[int | float, Help("kvpress often uses 0.01")] = 0.0
    name: str = "expected_attention"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon >= 0:
            raise UserError(f"score.epsilon={self.epsilon}: allowed: 0 or more, e.g. 0.01; it is added to the weights")

    def of_pairs(self, statistics: FutureQueryStats, keys: Dense, values: Dense) -> Scores:
        parts = [self._logits(statistics, part) for part in keys.split(COLUMN_CHUNK, dim=1)]
        return torch.cat(parts, dim=1).softmax(dim=1)

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return super().__call__(layer, window, reduce) + self.epsilon

    def _logits(self, statistics: FutureQueryStats, keys: Dense) -> Scores:
        wide = keys.float().repeat_interleave(statistics.mean.shape[0] // keys.shape[0], dim=0)
        logits = (wide @ statistics.mean.float()[..., None])[..., 0] * statistics.scaling
        if self.covariance:
            variance = ((wide @ statistics.covariance.float()) * wide).sum(dim=-1)
            logits = logits + variance * (statistics.scaling**2 / 2)
        return logits

    def weigh(self, layer: LayerCache, recent: int) -> Weight | None:
        if not self.value_norm:
            return None
        return Weight(layer.dense[1][:, : layer.lengths[0] - recent].float().norm(dim=-1))


@dataclass(frozen=True)
class Cap(FutureQueryScore):
    """w_j v_j.A^-1 v_j with A = I + sum_k w_k v_k v_k^T and w_j = exp(tau (cos(m, k_j) - largest cosine of the head)).

    CapKV (https://arxiv.org/abs/2604.25975), as in `CapPress` of kvpress: how much a pair adds to the directions that
    the values of a head span. m is the mean of the queries ahead. normalize: False takes the product m.k_j instead of
    the cosine, as the paper does.
    """

    tau: Annotated[int | float, Help("larger: fewer pairs count")] = 5.0
    sink: Annotated[int, Help("first tokens that are left out of the statistics and always kept")] = 4
    future: Annotated[int, Help("number of future positions")] = 512
    normalize: Annotated[bool, Help("N1: cosines, as kvpress has them; false: products, as in the paper")] = True
    name: str = "cap"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tau >= 0:
            raise UserError(f"score.tau={self.tau}: a factor of 0 or more, e.g. 5.0")

    def of_pairs(self, statistics: FutureQueryStats, keys: Dense, values: Dense) -> Scores:
        queries = statistics.mean.float().unflatten(0, (keys.shape[0], -1)).unbind(dim=1)
        return torch.stack([self._leverage(keys, values, query) for query in queries], dim=1).flatten(0, 1)

    def _leverage(self, keys: Dense, values: Dense, query: Float[Tensor, "kv_heads head_dim"]) -> Scores:
        """Return the score of each column for one query head of each KV head, whose expected query is `query`."""
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

    def _along(self, keys: Dense, query: Float[Tensor, "kv_heads head_dim"]) -> Scores:
        if self.normalize:
            keys, query = F.normalize(keys, dim=-1), F.normalize(query, dim=-1)
        return (keys @ query[..., None])[..., 0]
