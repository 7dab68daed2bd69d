"""Every query votes: the whole matrix in float64 gives the same, and nothing of its size is ever built."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import kvbench.eviction.scores.window
from kvbench.cache.attention import ROW_BLOCK
from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import reduce_group
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake
from kvbench.eviction.scores.obcache import ExactZeroed, OBCacheJoint
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.window import moments
from tests.arrays import random_layer
from tests.eviction.scores.test_window_scores import norm2, seen_by_rows

TOKENS = 1030  # three blocks of rows, two chunks of columns


@pytest.fixture(scope="module")
def layer() -> LayerCache:
    return random_layer(TOKENS, window=TOKENS, heads=2, kv_heads=1, head_dim=4)


@pytest.fixture(scope="module")
def matrix(layer: LayerCache) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return seen_by_rows(layer, TOKENS)


def close(actual: Tensor, expected: Tensor) -> bool:
    floor = 1e-3 * expected.amax(dim=1, keepdim=True)
    return bool(((actual.double() - expected).abs() / torch.maximum(expected, floor)).max() < 1e-4)


def test_the_mean_over_seeing_queries_is_the_observed_attention_of_kvpress() -> None:
    """kvpress 0.5.5, ObservedAttentionPress: column sums over N, N - 1, ... 1, the mean of the group, the top of it."""
    layer = random_layer(90, window=90, heads=6, kv_heads=2)
    sums = seen_by_rows(layer, 90)[0].sum(1)
    published = torch.stack([sums[:, column] / (90 - column) for column in range(90)], dim=1).view(2, 3, 90).mean(1)
    policy = Policy("h2o", window="all", reduce="observed_attention")
    assert close(reduce_group(Attention()(layer, layer.windows[0], "observed_attention"), "mean", 2), published)
    kept = Eviction(policy, Attention(), TokenBudget(27))(KVCache((layer,), 90)).layers[0]
    for head, positions in enumerate(kept.positions.split(kept.lengths)):
        assert set(positions.tolist()) == set(published[head].topk(27).indices.tolist())


def test_only_queries_of_the_window_count_as_seeing() -> None:
    layer, window = random_layer(40, window=40), random_layer(40, window=40).windows[0].last(8)
    weights = seen_by_rows(layer, 8)[0]
    expected = torch.stack([weights[:, max(0, column - 32) :, column].mean(1) for column in range(40)], dim=1)
    assert close(Attention()(layer, window, "observed_attention"), expected)


def test_moments_of_blocks_join_to_those_of_all_rows(layer: LayerCache, matrix) -> None:
    mean, variance = moments(layer, layer.windows[0])
    assert close(mean, matrix[0].mean(1))
    assert close(variance, matrix[0].var(1, correction=1))
    assert close(Cake()(layer, layer.windows[0], "sum"), matrix[0].mean(1) + 200 * matrix[0].var(1, correction=1))


def test_rows_that_do_not_see_a_column_add_nothing(layer: LayerCache, matrix) -> None:
    """The zeroed error of a hidden column is 0, although its logit reads as one of 0."""
    a, _, v, o = matrix
    visible = torch.ones(TOKENS, TOKENS).tril().bool()
    logits = layer.windows[0].queries.double() @ layer.dense[0].double().mT * layer.windows[0].scaling
    rest = (-logits.masked_fill(~visible, -torch.inf).logsumexp(-1)).exp()[..., None]
    changed = (o - a[..., None] * v) / (1 - a + rest)[..., None]
    expected = (norm2(changed - o) * visible).sum(1)
    assert close(ExactZeroed()(layer, layer.windows[0], "sum")[:, 1:], expected[:, 1:])  # 0 has all of row 0


@pytest.mark.parametrize("score", [Attention(), AttentionMax(), Cake(), OBCacheJoint()], ids=lambda score: score.name)
def test_no_array_has_a_row_a_query_and_a_column_a_token(
    layer: LayerCache, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0
    original = kvbench.eviction.scores.window.logits_by_chunk

    def spy(*arguments: Tensor) -> Iterator[tuple[slice, Tensor]]:
        nonlocal largest
        for columns, logits in original(*arguments):  # type: ignore[arg-type]
            largest = max(largest, logits[0].numel())
            yield columns, logits

    monkeypatch.setattr(kvbench.eviction.scores.window, "logits_by_chunk", spy)
    score(layer, layer.windows[0], "sum")
    assert 0 < largest <= ROW_BLOCK * 1024 < TOKENS * TOKENS


@pytest.mark.parametrize(
    ("power", "diagonal", "reduce"),
    [(1, True, "sum"), (1, True, "max"), (2, True, "mean"), (2, True, "max"), (1, False, "max")],
)
def test_weights_count_to_a_power_and_with_or_without_the_diagonal(
    layer: LayerCache, matrix, power: int, diagonal: bool, reduce: str
) -> None:
    a = matrix[0]
    a = a if diagonal else a * (1 - torch.eye(TOKENS, dtype=a.dtype))
    expected = {"sum": a.pow(power).sum(1), "mean": a.pow(power).mean(1), "max": a.pow(power).amax(1)}[reduce]
    (rows,) = layer.windows
    assert close(Attention(power=power, diagonal=diagonal)(layer, rows, reduce), expected)  # type: ignore[arg-type]
    if reduce == "max" and power == 1:
        assert close(AttentionMax(diagonal=diagonal)(layer, rows, "sum"), expected)


def test_of_a_window_each_row_leaves_itself_out(layer: LayerCache, matrix) -> None:
    """Of the newest five rows, in the columns of the window alone."""
    rows = layer.observed(5)
    whole, others = (Attention(diagonal=own)(layer, rows, "sum") for own in (True, False))
    gone = torch.stack([matrix[0][:, place, place] for place in range(TOKENS - 5, TOKENS)], dim=1)
    assert torch.allclose((whole - others)[:, -5:].double(), gone, atol=1e-6)
    assert torch.equal(whole[:, :-5], others[:, :-5])


def test_another_power_is_refused() -> None:
    with pytest.raises(ValueError, match=r"score\.power=3: allowed: 1, or 2"):
        Attention(power=3)
