"""Layer allocations: exact sums in the variant paper, and what published code does where it differs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.eviction.allocation.allocation import UniformLayers
from kvbench.eviction.allocation.layers import (
    EntropyLayers,
    LazyLayers,
    PreferenceLayers,
    PyramidLayers,
    adjusted,
    cascade,
)
from kvbench.eviction.allocation.shares import AllocationBudget


def terms(base: int, candidates: int, **more: Any) -> AllocationBudget:
    """BudgetInfo without protected tokens."""
    return AllocationBudget(budget=base, sink=0, recent=0, tokens=candidates, **more)


def test_lazy_layers_keep_what_is_protected_and_the_others_all() -> None:
    """SimLayerKV: the least lazy layers that the budget pays for, or those below the threshold."""
    laziness = [0.7, 0.95, 0.2, 0.91]
    assert LazyLayers()(laziness, terms(29, 40)) == (40, 0, 40, 0)  # 116 of 160 pay for two layers of 40, not three
    assert LazyLayers()(laziness, terms(9, 40)) == (0, 0, 0, 0)
    assert LazyLayers()(laziness, terms(9, 40, variant="official")) == (40, 0, 40, 0)
    assert LazyLayers(published_threshold=0.91)(laziness, terms(9, 40, variant="official")) == (40, 0, 40, 40)
    with pytest.raises(ValueError, match=r"published_threshold=1.2: attention is from 0 to 1, e.g. 0.9"):
        LazyLayers(published_threshold=1.2)


layer_weights = st.lists(st.floats(0, 1e3, allow_subnormal=False), min_size=1, max_size=9)
kinds = st.one_of(
    st.just(UniformLayers()),
    st.builds(PyramidLayers, beta=st.just(7), splits=st.sampled_from(["candidates", "budget"])),
    st.builds(EntropyLayers, splits=st.sampled_from(["candidates", "budget"])),
    st.builds(PreferenceLayers, splits=st.sampled_from(["candidates", "budget"])),
)


@given(kind=kinds, layer_weights=layer_weights, recent=st.integers(0, 40), data=st.data())
def test_the_variant_paper_spends_the_budget_exactly(
    kind: UniformLayers, layer_weights: list[float], recent: int, data: st.DataObject
) -> None:
    tokens = data.draw(st.integers(recent + 1, 300))
    budget = data.draw(st.integers(recent, tokens))
    counts = kind(layer_weights, AllocationBudget(budget=budget, sink=0, recent=recent, tokens=tokens))
    assert len(counts) == len(layer_weights) and sum(counts) == (budget - recent) * len(layer_weights)
    assert all(0 <= count <= tokens - recent for count in counts)


@given(beta=st.integers(1, 40), layers=st.integers(1, 40), candidates=st.integers(1, 4000), data=st.data())
def test_a_pyramid_falls(beta: int, layers: int, candidates: int, data: st.DataObject) -> None:
    base = data.draw(st.integers(0, candidates))
    for variant in ("paper", "official"):
        counts = PyramidLayers(beta=beta)([1.0] * layers, terms(base, candidates, variant=variant, even_heads=False))
        assert list(counts) == sorted(counts, reverse=True)
        assert all(0 <= count <= candidates for count in counts)
        if variant == "official":  # steps of integers, which overspend by less than a unit a step
            assert 0 <= sum(counts) - base * layers <= layers * (layers - 1) / 2


def test_a_published_pyramid_begins_at_twice_the_base() -> None:
    """KVCache-Factory's pyramidkv_utils.py: a prompt of 2 x 40 tokens has one, one of 79 has none."""
    shares = [
        PyramidLayers()([1.0] * 3, AllocationBudget(budget=48, sink=0, recent=8, tokens=tokens, variant="official"))
        for tokens in (79, 80)
    ]
    assert shares == [(40, 40, 40), (72, 40, 8)]


def test_budgets_that_exceed_their_sum_shrink_but_none_of_a_single_pair() -> None:
    """`adjust_budgets` in CAKE's cake_cache.py: what is clipped goes to the others, then the rest is dealt once."""
    assert adjusted([1, 9, 5], 12, 20) == [1, 7, 4]
    assert adjusted([30, 2, 1], 33, 20) == [20, 7, 6]
    assert adjusted([2, 2, 1], 7, 20) == [3, 3, 1]


def test_layers_that_nothing_tells_apart_share_alike() -> None:
    assert EntropyLayers()([0.0, 0.0], terms(35, 50, variant="official")) == (35, 35)
    assert cascade([0.0, 0.0], 10, 30) == (10, 10) and cascade([1.0], 10, 30) == (10,)


@pytest.mark.parametrize("fields", [{"tau1": 0}, {"tau2": -1}, {"tau1": float("nan")}], ids=str)
def test_temperatures_are_above_zero(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"policy\.layers\.tau.=.*: allowed: a temperature above 0"):
        PreferenceLayers(**fields)
