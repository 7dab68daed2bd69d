"""Half precision and numbers near the edge: what `a score is computed in float32` is worth, against float64."""

import numpy as np
import pytest
import torch

from kvbench.config.entries import options
from kvbench.config.settings import build
from kvbench.eviction.allocation.layers import entropy
from kvbench.eviction.evict import rank_layer
from kvbench.eviction.evict import raw_scores as scored
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.extras.conformance.properties.caches import layer_of
from kvbench.extras.conformance.tests.naive import raw_scores
from tests.composed import composed, needed

VOTED = ("attn", "attn_max", "cake", "obcache_value", "obcache_key", "obcache_joint", "exact_removal", "exact_zeroed")


def score_of(name: str) -> Score:
    return build("score", composed("policy=plain", f"score={name}", *needed("score", name))["score"])


def arrays(dtype: torch.dtype, rows: int, values: float, offset: float = 0.0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    queries = 1.5 * torch.randn(6, rows, 10, generator=generator)
    keys, noise = (torch.randn(2, 61, 10, generator=generator) for _ in range(2))
    return queries.to(dtype), keys.to(dtype), (values * noise + offset).to(dtype)


@pytest.mark.parametrize(("offset", "dtype"), [(0.0, torch.bfloat16), (30.0, torch.bfloat16), (30.0, torch.float16)])
@pytest.mark.parametrize("name", VOTED)
def test_half_precision_is_an_input_and_no_arithmetic(name: str, offset: float, dtype: torch.dtype) -> None:
    """Values that lie close to each other: |v - o|^2 is a small difference of large numbers, and the rounding of the
    outputs that a model hands over in half precision would be most of it.
    """
    queries, keys, values = arrays(dtype, 16, values=0.1, offset=offset)
    layer = layer_of(queries, keys, values)
    assert layer.windows[0].outputs.dtype == dtype
    scores = score_of(name)(layer, layer.windows[0], "sum")
    assert scores.dtype == torch.float32 and (scores >= 0).all()
    padded = np.zeros((6, 61, 10))
    padded[:, -16:] = queries.double().numpy()
    spec = {"score": {"name": name, "params": {"gamma": 200.0}}, "window": 16, "reduce": "sum"}
    wanted = raw_scores(spec, padded, keys.double().numpy(), values.double().numpy())
    close = 1e-5 * max(1.0, offset**2)  # the square of the offset over that of the spread is 9e4 at most
    assert np.allclose(scores.double().numpy(), wanted, rtol=close, atol=1e-3 * close * wanted.max())


@pytest.mark.parametrize("name", [name for name in options("score") if name != "head_table"])
def test_nothing_overflows_or_becomes_nan_with_every_row_voting(name: str) -> None:
    """Nothing protected, so that masked columns are candidates; logits of 50 and values of 100 would leave float16."""
    queries, keys, values = arrays(torch.float16, 61, values=100.0)
    layer = layer_of(queries * 5, keys * 2, values)
    policy, score = Policy("open", window="all"), score_of(name)
    ranking = rank_layer(layer, policy, score, scored(layer, policy, score))
    assert ranking.scores.isfinite().all() and ranking.scores.dtype == torch.float32


def test_entropy_of_scores_that_half_precision_would_lose() -> None:
    """Zeros, and shares of 1e-9 that float16 rounds to zero, count as what they are."""
    scores = torch.tensor([[0.0, 1.0, 1e-9, 2.0], [0.0, 3.0, 1e-9, 0.5]])
    p = scores.double().flatten() / scores.double().sum()
    wanted = -sum(float(x) * np.log(float(x)) for x in p if x > 0) / np.log(8)
    assert float(entropy(scores)) == pytest.approx(wanted, rel=1e-12)
    assert entropy(torch.zeros(2, 3)) == 0.0 and entropy(torch.ones(1, 1)) == 1.0


@pytest.mark.parametrize("width", [1, 512])
def test_sums_of_many_rows_do_not_stall(width: int) -> None:
    """2048 rows that give every token the same: a running sum in float16 would stop, in bfloat16 at 256."""
    tokens = 2048 + width
    queries = torch.zeros(2, 2048, 4, dtype=torch.bfloat16)
    layer = layer_of(
        queries, torch.zeros(1, tokens, 4, dtype=torch.bfloat16), torch.ones(1, tokens, 4, dtype=torch.bfloat16)
    )
    scores = score_of("attn")(layer, layer.windows[0], "sum")
    wanted = sum(1 / (width + 1 + row) for row in range(2048))
    assert torch.allclose(scores[:, :width], torch.tensor(wanted), rtol=1e-5)
