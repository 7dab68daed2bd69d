"""Closed forms against what they stand for: pairs really removed or zeroed, one at a time, in float64."""

import json

import pytest
import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams, causal, observe
from kvbench.cache.kv_cache import LayerCache, from_dense
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.score import Score
from scripts.golden_evictions import TESTS, inputs
from tests.arrays import layer_of, random_layer

ROWS, TOKENS = 5, 23
DROPKV = json.loads((TESTS / "methods_2026" / "dropkv.json").read_text("utf-8"))


def outputs(queries: Tensor, keys: Tensor, values: Tensor, scaling: float, visible: Tensor) -> Tensor:
    """Attention of the newest rows, per query head."""
    logits = (queries @ keys.mT * scaling).masked_fill(~visible, -torch.inf)
    return logits.softmax(-1) @ values


def parts(layer: LayerCache) -> tuple[Tensor, Tensor, Tensor, float, Tensor]:
    """Queries, keys and values a query head in float64, scaling, and what each row sees."""
    keys, values = (part.double().repeat_interleave(layer.query_heads // part.shape[0], 0) for part in layer.dense)
    tokens = keys.shape[1]
    window = layer.windows[0]
    visible = torch.ones(tokens, tokens).tril()[-window.queries.shape[1] :].bool()
    return window.queries.double(), keys, values, window.scaling, visible


def changed_by(layer: LayerCache, change: str, share: float = 1.0) -> Tensor:
    """sum over rows of |o' - o|^2 when each pair in turn is removed, or moved towards zero by `share`."""
    queries, keys, values, scaling, visible = parts(layer)
    before = outputs(queries, keys, values, scaling, visible)
    errors = []
    for column in range(keys.shape[1]):
        other_keys, other_values, seen = keys.clone(), values.clone(), visible.clone()
        if change == "removed":
            seen[:, column] = False
        if change in ("zeroed", "key"):
            other_keys[:, column] *= 1 - share
        if change in ("zeroed", "value"):
            other_values[:, column] *= 1 - share
        after = outputs(queries, other_keys, other_values, scaling, seen)
        errors.append(((after - before) * visible[:, column, None]).square().sum((-1, -2)))
    return torch.stack(errors, dim=1)


@pytest.mark.parametrize(("score", "change"), [(ExactRemoval(), "removed"), (ExactZeroed(), "zeroed")], ids=str)
def test_the_exact_error_is_that_of_the_changed_cache(score: Score, change: str) -> None:
    layer = random_layer(TOKENS, window=ROWS)
    scores = score(layer, layer.windows[0], "sum").double()
    assert torch.allclose(scores, changed_by(layer, change), rtol=1e-4)


@pytest.mark.parametrize(
    ("score", "change"), [(OBCacheValue(), "value"), (OBCacheKey(), "key"), (OBCacheJoint(), "zeroed")], ids=str
)
def test_obcache_is_the_second_order_of_the_error(score: Score, change: str) -> None:
    """The error along (1 - t) of the pair is t^2 times the score for small t: central second difference in float64."""
    layer = random_layer(TOKENS, window=ROWS)
    step = 1e-4
    second = (changed_by(layer, change, step) + changed_by(layer, change, -step)) / (2 * step**2)
    assert torch.allclose(score(layer, layer.windows[0], "sum").double(), second, rtol=1e-3, atol=1e-5)


def test_the_score_of_dropkv_is_the_exact_removal_in_the_mean_over_query_heads() -> None:
    """But for the 1e-6 that its code adds to 1 - A."""
    arrays = [torch.from_numpy(part) for part in inputs(DROPKV["seed"]).values()]
    for index, (query, key, value) in enumerate(zip(*arrays, strict=True)):
        scaling, rows = key.shape[2] ** -0.5, query[:, -DROPKV["window"] :]
        window = observe(rows, causal(rows, key, value, scaling), key, AttentionParams(scaling))
        layer = from_dense(index, len(query), key, value, (window,))
        scores = ExactRemoval()(layer, window, "sum").unflatten(0, (len(key), -1)).mean(dim=1)
        expected = torch.tensor(DROPKV["scores"][index])
        torch.testing.assert_close(scores, expected, rtol=2e-4, atol=1e-5)


def saturated(dtype: torch.dtype, logit: float) -> LayerCache:
    """A layer whose rows give token 3 nearly all of their weight."""
    layer = random_layer(40, window=4)
    keys, values = (part.clone() for part in layer.dense)
    queries = layer.windows[0].queries.clone()
    keys[..., 0], queries[..., 0] = 0, 1
    keys[:, 3] = 0
    keys[:, 3, 0] = logit * keys.shape[-1] ** 0.5
    return layer_of(queries.to(dtype), keys.to(dtype), values.to(dtype))


@pytest.mark.parametrize(
    ("logit", "dtype"), [(4.0, torch.bfloat16), (8.0, torch.float16), (12.0, torch.bfloat16), (80.0, torch.float32)]
)
@pytest.mark.parametrize("score", [ExactRemoval(), ExactZeroed()], ids=lambda score: score.name)
def test_a_pair_with_all_the_weight_is_worth_most(score: Score, logit: float, dtype: torch.dtype) -> None:
    """Finite and first, however close to 1; and resolved where 1 - a is not lost, whatever the model's precision."""
    layer = saturated(dtype, logit)
    scores = score(layer, layer.windows[0], "sum")
    assert scores.isfinite().all() and (scores >= 0).all()
    assert (scores.argmax(dim=1) == 3).all()
    if logit <= 8:
        exact = changed_by(layer, "removed" if score.name == "exact_removal" else "zeroed")
        assert torch.allclose(scores[:, 3].double(), exact[:, 3], rtol=2e-2)


def test_a_row_that_sees_one_token_alone_is_no_reason_to_stumble() -> None:
    """Every query of the prompt votes; the first sees itself only, and nothing is left without it."""
    layer = random_layer(30, window=30)
    for score in (ExactRemoval(), ExactZeroed()):
        scores = score(layer, layer.windows[0], "sum")
        assert scores.isfinite().all() and (scores >= 0).all()
    assert (ExactRemoval()(layer, layer.windows[0], "sum").argmax(dim=1) == 0).all()


def test_a_shift_of_all_logits_moves_zeroing_and_not_removal() -> None:
    """Logits far below zero make a zeroed pair the only one that is seen; nothing overflows."""
    layer = random_layer(TOKENS, window=ROWS)
    keys, values = (part.clone() for part in layer.dense)
    queries = layer.windows[0].queries.clone()
    queries[..., 0], keys[..., 0] = 1.0, 0.0
    plain = layer_of(queries, keys, values)
    shifted_keys = keys.clone()
    shifted_keys[..., 0] = -300.0
    shifted = layer_of(queries, shifted_keys, values)
    removal = [ExactRemoval()(layer, layer.windows[0], "sum") for layer in (plain, shifted)]
    assert torch.allclose(removal[0], removal[1], rtol=1e-2)
    zeroed = ExactZeroed()(shifted, shifted.windows[0], "sum")
    assert torch.allclose(zeroed.double(), changed_by(shifted, "zeroed"), rtol=1e-3)
