"""ScoreInputs about queries that are still to come: what those of the prompt look like, turned to positions ahead.

Before rotation the queries of a head are much alike wherever they stand, so that mean and covariance of those that were
read describe later ones, once they are rotated like them (Expected Attention: Devoto et al. 2025,
https://arxiv.org/abs/2510.00636).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from kvbench.support.errors import UserError


@dataclass(frozen=True)
class FutureQueries:
    """Which queries are read and which are foretold: all but the first `skip`, turned to the next `positions`."""

    skip: int
    positions: int

    def __post_init__(self) -> None:
        if self.skip < 0 or self.positions < 1:
            raise UserError(f"score.sink={self.skip} must be 0 or more and score.future={self.positions} 1 or more")


@dataclass(frozen=True)
class Forecast:
    """Mean and covariance over tokens of the queries of a layer without their rotation, turned by the average rotation
    of the positions ahead. A logit is q.k * scaling.
    """

    horizon: FutureQueries
    mean: Float[Tensor, "heads head_dim"]
    covariance: Float[Tensor, "heads head_dim head_dim"]
    scaling: float


def recorded(forecasts: Iterable[Forecast], horizon: FutureQueries) -> Forecast:
    """The forecast of a horizon. Raises ValueError where it was not recorded."""
    for forecast in forecasts:
        if forecast.horizon == horizon:
            return forecast
    raise UserError(f"no queries were foretold for {horizon}: prefill with it")
