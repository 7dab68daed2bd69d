"""Statistics of the queries that will follow the prompt, predicted from those of the prompt.

Before rotation (RoPE) the queries of a head are distributed alike at every position. Their mean and covariance over the
prompt, rotated by the average rotation of the next positions, therefore describe later queries (Expected Attention:
Devoto et al. 2025, https://arxiv.org/abs/2510.00636).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kvbench.support.errors import UserError


@dataclass(frozen=True)
class FutureQueries:
    """A request: skip the first `skip` queries of the prompt, and predict those of the next `positions` positions."""

    skip: int
    positions: int

    def __post_init__(self) -> None:
        if self.skip < 0 or self.positions < 1:
            raise UserError(f"score.sink={self.skip} must be 0 or more and score.future={self.positions} 1 or more")


@dataclass(frozen=True)
class FutureQueryStats:
    """Predicted mean and covariance of the future queries of a layer; a logit is q.k * scaling."""

    request: FutureQueries
    mean: Float[Tensor, "heads head_dim"]
    covariance: Float[Tensor, "heads head_dim head_dim"]
    scaling: float


def find_statistics(recorded: Iterable[FutureQueryStats], request: FutureQueries) -> FutureQueryStats:
    """The statistics recorded for a request. Raises UserError where there are none."""
    for statistics in recorded:
        if statistics.request == request:
            return statistics
    raise UserError(f"no future queries were recorded for {request}: prefill with it")
