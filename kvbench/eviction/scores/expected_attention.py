"""Expected Attention: the attention that later queries are expected to give a pair, times the norm of its value.

Devoto, Jeblick, Jégou 2025, https://arxiv.org/abs/2510.00636, as in `ExpectedAttentionPress` of kvpress: queries are
taken as normally distributed, so that the expectation of exp(q.k) is exp of a mean and half a variance.
"""

from dataclasses import dataclass

import torch

from kvbench.cache.future_queries import FutureQueries, FutureQueryStats, find_statistics
from kvbench.cache.kv_cache import LayerCache, Window
from kvbench.cache.shapes import Ranked, Scores
from kvbench.eviction.pooling import Weight
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.support.errors import UserError

COLUMN_CHUNK = 4096
"""Columns whose quadratic forms are taken at a time."""


@dataclass(frozen=True)
class ExpectedAttention(Score):
    """(softmax_j(m.k_j / sqrt(d) + k_j.C k_j / 2d) + epsilon) |v_j| with mean m and covariance C of the queries ahead.

    The first `sink` tokens are left out of the statistics and of the softmax, and score as much as the best pair of the
    layer. `future` is the number of later positions. Raises UserError for a prompt of at most `sink` tokens.
    """

    sink: int = 4
    future: int = 512
    covariance: bool = True
    value_norm: bool = True
    epsilon: int | float = 0.0
    name: str = "expected_attention"

    def __post_init__(self) -> None:
        FutureQueries(self.sink, self.future)
        if not self.epsilon >= 0:
            raise UserError(f"score.epsilon={self.epsilon}: allowed: 0 or more, e.g. 0.01; it is added to the weights")

    @property
    def inputs(self) -> ScoreInputs:
        return ScoreInputs(future_queries=FutureQueries(self.sink, self.future))

    def __call__(self, layer: LayerCache, rows: Window | None, reduce: Reduce) -> Scores:
        statistics = find_statistics(layer.future_queries, FutureQueries(self.sink, self.future))
        if layer.lengths[0] <= self.sink:
            raise UserError(
                f"score {self.name} leaves out the first {self.sink} tokens, but the prompt has {layer.lengths[0]}: "
                "lower score.sink"
            )
        parts = [self._logits(statistics, part) for part in layer.dense[0][:, self.sink :].split(COLUMN_CHUNK, dim=1)]
        weights = torch.cat(parts, dim=1).softmax(dim=1)
        return torch.cat((weights.new_zeros(weights.shape[0], self.sink), weights), dim=1) + self.epsilon

    def _logits(self, statistics: FutureQueryStats, keys: torch.Tensor) -> Scores:
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

    def refine(self, shaped: Ranked, layer: LayerCache) -> Ranked:
        lifted = shaped.clone()
        if shaped.shape[1]:
            lifted[:, : self.sink] = shaped.max()
        return lifted
