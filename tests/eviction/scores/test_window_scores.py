"""Window scores against their formulas written out naively in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake
from kvbench.eviction.scores.obcache import OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.window import moments, resolved
from tests.arrays import layer_of, random_layer

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


@pytest.mark.parametrize("rows", [1, 5, 8])
@pytest.mark.parametrize("tokens", [19, 37, 1031, 2049])
@pytest.mark.parametrize("name", FORMULAS)
def test_score_is_its_formula(name: str, tokens: int, rows: int) -> None:
    """Whatever the number of rows, and across the edges of the column chunks.

    Every row sees at least a dozen tokens, so that 1 - A and with it |v - o| is resolved in float32.
    """
    score, formula = FORMULAS[name]
    layer = random_layer(tokens, window=8)
    scores = score(layer, layer.observed(rows), "sum").double()
    expected = formula(*seen_by_rows(layer, rows))
    floor = 0.1 * expected.amax(dim=1, keepdim=True)  # logits near zero make the key score cross zero
    assert ((scores - expected).abs() / torch.maximum(expected, floor)).max() < 1e-5


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_attention_merges_rows_as_asked(reduce: str) -> None:
    """sum, mean and max over the observed rows."""
    layer = random_layer(50, window=8)
    weights = seen_by_rows(layer, 8)[0]
    expected = weights.amax(1) if reduce == "max" else getattr(weights, reduce)(1)
    assert torch.allclose(Attention()(layer, layer.windows[0], reduce).double(), expected, rtol=1e-4, atol=1e-7)  # type: ignore[arg-type]


def test_cake_adds_the_unbiased_variance() -> None:
    layer = random_layer(50, window=8)
    weights = seen_by_rows(layer, 8)[0]
    expected = weights.mean(1) + 7 * weights.var(1, correction=1)
    scores = Cake(gamma=7)(layer, layer.windows[0], "sum").double()
    assert torch.allclose(scores, expected, rtol=1e-4, atol=1e-7)
    alone = Cake(gamma=7)(layer, layer.observed(1), "mean")
    assert torch.allclose(alone.double(), weights[:, -1], rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match=r"policy\.window=1: a variance over the observed rows needs two"):
        moments(layer, layer.observed(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMULAS)
def test_half_precision_caches_are_scored_in_float32(name: str, dtype: torch.dtype) -> None:
    """The scores of a half precision cache are those of its values, not rounded again on the way."""
    layer = random_layer(300, window=8)
    keys, values = (part.to(dtype) for part in layer.dense)
    half = layer_of(layer.windows[0].queries.to(dtype), keys, values)
    seen = half.windows[0]
    wide = LayerCache(
        0,
        half.query_heads,
        half.keys.float(),
        half.values.float(),
        half.positions,
        half.offsets,
        (ObservationWindow(seen.queries.float(), seen.outputs.float(), seen.lse, seen.scaling),),
    )
    score, _ = FORMULAS[name]
    scores = score(half, half.windows[0], "sum")
    assert scores.dtype == torch.float32
    rows = wide.windows[0]
    if name in ("obcache_key", "obcache_joint"):  # they compute outputs that were rounded again from the cache
        rows = resolved(half, seen)
        rows = ObservationWindow(rows.queries.float(), rows.outputs, rows.lse, rows.scaling)
    assert torch.equal(scores, score(wide, rows, "sum"))


def test_distances_survive_a_large_common_offset() -> None:
    """|v - o|^2 is small beside |v|^2 here: the naive expansion in float32 loses every digit."""
    layer = random_layer(200, window=8)
    keys, values = layer.dense
    moved = layer_of(layer.windows[0].queries, keys, values + 1000)
    expected = FORMULAS["obcache_key"][1](*seen_by_rows(moved, 8))
    scores = OBCacheKey()(moved, moved.windows[0], "sum").double()
    assert ((scores - expected).abs() <= 1e-2 * expected.amax()).all()


def test_a_saturated_row_scores_finite_and_first() -> None:
    """One key that takes all the attention of every row (a -> 1)."""
    layer = random_layer(64, window=8)
    keys, values = layer.dense
    keys = keys.clone()
    keys[:, 3] = 0
    queries = layer.windows[0].queries.clone()
    queries[..., 0], keys[:, :, 0], keys[:, 3, 0] = 40.0, 0.0, 40.0
    saturated = layer_of(queries, keys, values)
    for score, _ in FORMULAS.values():
        scores = score(saturated, saturated.windows[0], "sum")
        assert scores.isfinite().all()
        if not isinstance(score, OBCacheKey):  # the key score of a lone token is 0: its output does not move
            assert (scores.argmax(dim=1) == 3).all()
