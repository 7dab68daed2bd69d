"""Evicted pairs that are merged into kept ones, on random layers and any kept pairs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.allocation.heads import FlatHeads
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.step import Drop, Kind
from kvbench.extras.conformance.golden.case import make_score
from kvbench.extras.merging import merging
from kvbench.extras.merging.merging import D2O, CaM, Nearest
from scripts.golden_apply import SHAPE, made_up
from tests.arrays import layer_of, random_cache, random_layer
from tests.extras.apply.made_up import TOKENS, applied, evicting, kept_masks
from tests.pretended_gpu import PretendedGpu

MERGES = (D2O(), CaM(spread=3), Nearest())


@settings(max_examples=25, deadline=None)
@given(kept_masks, st.integers(0, 3), st.sampled_from([D2O(), D2O(beta=0), Nearest(), Nearest(threshold=0.5)]))
def test_merged_pairs_lie_between_what_the_head_held(kept: Sequence[Sequence[bool]], seed: int, apply: Kind) -> None:
    """Weights are 0 or more and add up to 1: every channel is between its least and its greatest number."""
    layer, mask = random_layer(TOKENS, seed=seed), torch.tensor(kept)
    _, after = applied(apply, layer, mask)
    for name in ("keys", "values"):
        held, merged = getattr(layer, name).view(2, TOKENS, -1), getattr(after, name).split(after.lengths)
        for before, pairs in zip(held, merged, strict=True):
            assert (pairs >= before.amin(dim=0) - 1e-5).all() and (pairs <= before.amax(dim=0) + 1e-5).all()


@pytest.mark.parametrize("apply", MERGES, ids=lambda apply: apply.kind)
def test_where_nothing_is_evicted_nothing_changes(apply: Kind) -> None:
    cache = random_cache(TOKENS)
    assert evicting(apply, TOKENS)(cache) is cache
    apart = evicting(apply, TOKENS, layout="query_heads")(cache)
    plain = evicting(Drop(), TOKENS, layout="query_heads")(cache)
    for layer, expected in zip(apart.layers, plain.layers, strict=True):
        assert torch.equal(layer.keys, expected.keys) and torch.equal(layer.values, expected.values)


def test_many_keys_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, kept = random_layer(TOKENS), torch.arange(TOKENS).expand(2, -1) % 3 == 0
    _, whole = applied(D2O(), layer, kept)
    monkeypatch.setattr(merging, "MOST_PRODUCTS", 20)
    _, parts = applied(D2O(), layer, kept)
    assert torch.allclose(whole.keys, parts.keys) and torch.allclose(whole.values, parts.values)


@pytest.mark.parametrize("apply", MERGES, ids=lambda apply: apply.kind)
def test_later_evictions_merge_too_and_remember_the_threshold(apply: Kind) -> None:
    """Two evictions from one layer of ragged heads; a score that reads no queries lets CaM read them."""
    policy, score, cache = Policy("p", window=4, steps=(apply,)), KeyNorm(), random_cache(TOKENS, layers=1)
    merges = replace(policy, heads=FlatHeads())
    (begun,), (plain,) = (
        Eviction(each, score, TokenBudget(12))(cache).layers for each in (merges, replace(merges, steps=()))
    )
    assert len(set(begun.lengths)) == 2 and torch.equal(begun.positions, plain.positions)
    new = random_layer(6, seed=3)
    results = []
    for start, step_policy in ((begun, policy), (plain, replace(policy, steps=()))):
        grown = start.append(*new.dense, TOKENS)
        rows = replace(new.windows[0], lse=torch.full_like(new.windows[0].lse, 3.0))
        evictor = IncrementalEviction(Eviction(step_policy, score, TokenBudget(12)), 12, decoding=True)
        results.append((grown, evictor.step(grown, rows).layer))
    (grown, after), (_, dropped) = results
    assert (merging.THRESHOLDS in after.by_head) == (apply.kind == "d2o")
    if apply.kind == "d2o":
        before, later = (layer.by_head[merging.THRESHOLDS] for layer in (begun, after))
        assert not torch.equal(before, later)
        without = KVCache((replace(after, by_head={}),), 29)
        assert KVCache((after,), 29).bytes_allocated - without.bytes_allocated == 8
    assert after.lengths == dropped.lengths and (after.values != grown.values[: len(after.values)]).any()


def test_rows_of_a_window_that_skips_tokens_end_before_them() -> None:
    arrays = made_up(1, SHAPE | {"tokens": 60})
    queries, keys, values = (torch.from_numpy(arrays[name]) for name in ("queries", "keys", "values"))
    cache = KVCache((layer_of(queries, keys, values),), 60)
    shorter = KVCache((layer_of(queries[:, :53], keys[:, :53], values[:, :53]),), 53)
    for apply in (D2O(), CaM(), Nearest()):
        policy = Policy("p", window=8, recent=4, window_skips=7, steps=(apply,))
        (after,) = Eviction(policy, make_score("attn", {}), TokenBudget(27))(cache).layers
        (alone,) = Eviction(replace(policy, window_skips=0), make_score("attn", {}), TokenBudget(20))(shorter).layers
        for head in range(2):
            mine = slice(27 * head, 27 * head + 20)
            assert torch.equal(after.values[mine], alone.values[20 * head : 20 * head + 20]), apply.kind
            assert torch.equal(after.values[27 * head + 20 : 27 * head + 27], values[head, 53:])


@pytest.mark.parametrize("apply", [*MERGES, CaM(spread=2 * TOKENS)], ids=str)
def test_a_gpu_adds_in_an_order_that_does_not_change(apply: Kind) -> None:
    """Nothing that torch lists as not deterministic is launched, and pairs have the bits of a CPU."""
    arrays = made_up(1, SHAPE | {"tokens": TOKENS})
    queries, keys, values = (torch.from_numpy(arrays[name]) for name in ("queries", "keys", "values"))
    kept = torch.arange(TOKENS).expand(2, -1) % 3 == 0
    _, expected = applied(apply, layer_of(queries, keys, values), kept)
    with PretendedGpu() as gpu:
        layer = layer_of(queries.to("cuda"), keys.to("cuda"), values.to("cuda"))
        _, after = applied(apply, layer, kept.to("cuda"))
        assert torch.equal(after.keys.cpu(), expected.keys) and torch.equal(after.values.cpu(), expected.values)
    assert not gpu.unordered and not gpu.mixed


@pytest.mark.parametrize("apply", MERGES, ids=lambda apply: apply.kind)
def test_the_host_waits_as_often_for_many_heads_as_for_few(apply: Kind) -> None:
    """Once for how many pairs each head keeps; CaM once for the newest position too."""
    for heads in (2, 6):
        arrays = made_up(1, SHAPE | {"tokens": TOKENS, "query_heads": 2 * heads, "kv_heads": heads})
        queries, keys, values = (torch.from_numpy(arrays[name]) for name in ("queries", "keys", "values"))
        kept = torch.arange(TOKENS).expand(heads, -1) % 3 < 1 + torch.arange(heads)[:, None] % 2
        with PretendedGpu() as gpu:
            layer, mask = layer_of(queries.to("cuda"), keys.to("cuda"), values.to("cuda")), kept.to("cuda")
            plain = layer.select(mask)
            rows = layer.observed(apply.rows(5, TOKENS)) if apply.reads_rows else None
            with gpu.section("merge"):
                apply.change(layer, mask, plain, rows, "paper")
        assert gpu.waited("merge") == 1 + (apply.kind == "cam"), gpu.waits["merge"]


@given(st.integers(0, 9), st.integers(1, 40))
def test_the_newest_rows_are_summed_up_to_each_row(rows: int, number: int) -> None:
    numbers = torch.arange(2.0 * rows).view(rows, 2)
    expected = [numbers[max(0, row + 1 - number) : row + 1].sum(dim=0) for row in range(rows)]
    assert torch.equal(merging.newest_sums(numbers, number), torch.stack(expected) if expected else numbers)
