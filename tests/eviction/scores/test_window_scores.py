"""Window scores against their formulas written out naively in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake
from kvbench.eviction.scores.obcache import OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.window import moments
from tests.arrays import random_layer

Naive = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def seen_by_rows(layer: LayerCache, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A and Z [heads, rows, tokens], v [heads, 1, tokens, dim], o [heads, rows, 1, dim], all in float64."""
    keys, values = (part.double().repeat_interleave(layer.query_heads // part.shape[0], 0) for part in layer.dense)
    queries = layer.windows[0].queries[:, -rows:].double()
    tokens = keys.shape[1]
    visible = torch.ones(tokens, tokens).tril()[-rows:].bool()
    logits = queries @ keys.mT * layer.windows[0].scaling
    weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    outputs = weights @ values
    return weights, logits.masked_fill(~visible, 0), values[:, None], outputs[:, :, None]


def norm2(vectors: Tensor) -> Tensor:
    """Squared Euclidean norm of the last axis."""
    return vectors.square().sum(-1)


FORMULAS: dict[str, tuple[Score, Naive]] = {
    "attn": (Attention(), lambda a, z, v, o: a.sum(1)),
    "attn_max": (AttentionMax(), lambda a, z, v, o: a.amax(1)),
    "obcache_value": (OBCacheValue(), lambda a, z, v, o: (a**2 * norm2(v)).sum(1)),
    "obcache_key": (OBCacheKey(), lambda a, z, v, o: ((a * z) ** 2 * norm2(v - o)).sum(1)),
    "obcache_joint": (OBCacheJoint(), lambda a, z, v, o: (a**2 * norm2(v + z[..., None] * (v - o))).sum(1)),
}


@pytest.mark.parametrize(("tokens", "rows"), [(19, 8), (1031, 5), (2049, 1)])
@pytest.mark.parametrize("name", FORMULAS)
def test_score_is_its_formula_across_the_edges_of_column_chunks(name: str, tokens: int, rows: int) -> None:
    """Every row sees at least a dozen tokens, so that 1 - A and with it |v - o| is resolved in float32."""
    score, formula = FORMULAS[name]
    layer = random_layer(tokens, window=8)
    scores = score(layer, layer.observed(rows), "sum").double()
    expected = formula(*seen_by_rows(layer, rows))
    floor = 0.1 * expected.amax(dim=1, keepdim=True)  # logits near zero make the key score cross zero
    assert ((scores - expected).abs() / torch.maximum(expected, floor)).max() < 1e-5


def test_one_row_has_no_variance() -> None:
    layer = random_layer(50, window=8)
    alone = Cake(gamma=7)(layer, layer.observed(1), "mean")
    assert torch.allclose(alone.double(), seen_by_rows(layer, 1)[0][:, 0], rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match=r"policy\.window=1: a variance over the observed rows needs two"):
        moments(layer, layer.observed(1))
