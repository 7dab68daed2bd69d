"""Pairs are gathered with what is remembered of them, whatever the lengths of the heads."""

from dataclasses import replace

import pytest
import torch

from kvbench.cache.attention import AttentionParams, attend_layer, observe
from kvbench.cache.kv_cache import LayerCache, dense_parts, from_dense, joined
from tests.arrays import random_layer


def ragged(counts: tuple[int, ...] = (3, 7, 3, 11)) -> LayerCache:
    """Heads of these lengths out of 13 tokens, each pair remembering 100 x head + position."""
    layer = random_layer(13, heads=2 * len(counts), kv_heads=len(counts))
    kept = torch.zeros(len(counts), 13, dtype=torch.bool)
    for head, count in enumerate(counts):
        kept[head, torch.randperm(13, generator=torch.Generator().manual_seed(head))[:count]] = True
    worth = 100.0 * torch.arange(len(counts)).repeat_interleave(13) + layer.positions
    return replace(layer, state={"worth": worth}).select(kept)


def remembered(layer: LayerCache) -> torch.Tensor:
    return torch.tensor([100.0 * head for head, length in enumerate(layer.lengths) for _ in range(length)])


def test_what_is_remembered_goes_where_its_pair_goes() -> None:
    layer = ragged()
    assert layer.lengths == (3, 7, 3, 11)
    assert torch.equal(layer.state["worth"], remembered(layer) + layer.positions)


def test_new_pairs_stand_behind_those_of_their_head() -> None:
    layer = ragged()
    keys, values = torch.randn(4, 2, 10), torch.randn(4, 2, 10)
    grown = layer.append(keys, values, 13)
    assert grown.lengths == (5, 9, 5, 13)
    for head, (start, stop) in enumerate(zip(grown.offsets, grown.offsets[1:], strict=False)):
        old = slice(layer.offsets[head], layer.offsets[head + 1])
        assert torch.equal(grown.keys[start:stop], torch.cat((layer.keys[old], keys[head])))
        assert torch.equal(grown.values[start:stop], torch.cat((layer.values[old], values[head])))
        assert grown.positions[start:stop].tolist() == [*layer.positions[old].tolist(), 13, 14]
        assert grown.state["worth"][start:stop].tolist() == [*layer.state["worth"][old].tolist(), 0, 0]


def test_new_pairs_are_repeated_for_query_heads() -> None:
    layer = random_layer(5).select(torch.ones(6, 5, dtype=torch.bool))
    keys = torch.randn(2, 1, 10)
    grown = layer.append(keys, keys, 5)
    assert torch.equal(grown.dense[0][:, -1], keys[:, 0].repeat_interleave(3, 0))


@pytest.mark.parametrize("counts", [(3, 7, 3, 11), (4, 4, 4, 4), (0, 13, 0, 1)], ids=str)
def test_heads_taken_apart_by_length_hold_their_pairs(counts: tuple[int, ...]) -> None:
    layer = ragged(counts)
    parts = dict(dense_parts(layer))
    assert len(parts) == len(set(counts)) and sorted(head for heads in parts for head in heads) == [0, 1, 2, 3]
    for heads, part in parts.items():
        pairs = [pair for head in heads for pair in range(layer.offsets[head], layer.offsets[head + 1])]
        assert part.query_heads == 2 * len(heads) and part.lengths == tuple(counts[head] for head in heads)
        for name in ("keys", "values", "positions"):
            assert torch.equal(getattr(part, name), getattr(layer, name)[pairs])
        assert torch.equal(part.state["worth"], layer.state["worth"][pairs])


def test_slots_of_ragged_heads_are_selected_by_their_place_in_the_head() -> None:
    layer, kept = ragged(), torch.zeros(4, 11, dtype=torch.bool)
    kept[0, 2], kept[1, [0, 6]], kept[3, [1, 10]] = True, True, True
    smaller = layer.select(kept)
    pairs = [2, 3, 9, 14, 23]  # heads begin at 0, 3, 10 and 13
    assert smaller.lengths == (1, 2, 0, 2) and torch.equal(smaller.positions, layer.positions[pairs])
    assert torch.equal(smaller.keys, layer.keys[pairs]) and torch.equal(
        smaller.state["worth"], layer.state["worth"][pairs]
    )


def test_rows_over_ragged_heads_are_those_of_each_head_alone() -> None:
    layer = ragged().append(torch.randn(4, 3, 10), torch.randn(4, 3, 10), 13)
    queries = torch.randn(8, 3, 10)
    rows = attend_layer(queries, layer, AttentionParams(0.3))
    for head in range(4):
        readers = slice(2 * head, 2 * head + 2)
        alone = attend_layer(queries[readers], layer.of_heads([head]), AttentionParams(0.3))
        assert torch.allclose(rows.outputs[readers], alone.outputs) and torch.allclose(rows.lse[readers], alone.lse)
    own = rows.of_heads((1, 3), 4)
    assert torch.equal(own.queries, queries[[2, 3, 6, 7]]) and torch.equal(own.lse, rows.lse[[2, 3, 6, 7]])


def test_consecutive_records_are_one() -> None:
    (window,) = random_layer(20, window=9).windows
    both = joined([window.last(9), window.last(4)])
    assert torch.equal(both.queries[:, 9:], window.queries[:, 5:]) and both.lse.shape == (6, 13)


def test_without_its_newest_tokens_a_layer_is_that_of_a_shorter_prompt() -> None:
    """Also what the older queries saw: a window that skips three tokens observes those before them."""
    layer = random_layer(40, window=12)
    shorter = layer.without_newest(3)
    keys, values = (part[:, :37] for part in layer.dense)
    queries = layer.windows[0].queries[:, :9]
    rows = observe(queries, layer.windows[0].outputs[:, :9], keys, AttentionParams(layer.windows[0].scaling))
    alone = from_dense(layer.index, layer.query_heads, keys, values, (rows,))
    assert shorter.lengths == alone.lengths and torch.equal(shorter.positions, alone.positions)
    assert torch.equal(shorter.keys, alone.keys) and torch.equal(shorter.values, alone.values)
    seen, expected = shorter.observed(9), alone.observed(9)
    assert torch.equal(seen.queries, expected.queries) and torch.equal(seen.outputs, expected.outputs)
    torch.testing.assert_close(seen.lse, expected.lse)
    assert layer.without_newest(0) is layer


def test_some_heads_of_a_layer_keep_their_pairs_and_numbers_and_the_order_asked_for() -> None:
    layer = replace(ragged(), by_head={"degree": torch.tensor([5.0, 6.0, 7.0, 8.0])})
    some = layer.of_heads([2, 1])
    assert some.lengths == (3, 7) and some.query_heads == 4
    assert some.by_head["degree"].tolist() == [7.0, 6.0]
    assert torch.equal(some.state["worth"] - some.positions, torch.tensor([200.0] * 3 + [100.0] * 7))
