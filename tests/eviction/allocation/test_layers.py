"""Layer allocations: exact sums in the variant paper, and what published code does where it differs."""

import math
from typing import Any

import pytest
import torch
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
    entropy,
    preference,
)
from kvbench.eviction.allocation.shares import AllocationBudget
from tests.arrays import random_layer
from tests.eviction.scores.test_window_scores import seen_by_rows


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
kinds = st.sampled_from([UniformLayers(), PyramidLayers(beta=7), EntropyLayers(), PreferenceLayers()])


@given(kind=kinds, layer_weights=layer_weights, candidates=st.integers(1, 300), data=st.data())
def test_the_variant_paper_spends_the_budget_exactly(
    kind: UniformLayers, layer_weights: list[float], candidates: int, data: st.DataObject
) -> None:
    base = data.draw(st.integers(0, candidates))
    counts = kind(layer_weights, terms(base, candidates))
    assert len(counts) == len(layer_weights) and sum(counts) == base * len(layer_weights)
    assert all(0 <= count <= candidates for count in counts)


wholes = st.sampled_from(
    [PyramidLayers(beta=7, splits="budget"), EntropyLayers(splits="budget"), PreferenceLayers(splits="budget")]
)


@given(kind=wholes, layer_weights=layer_weights, recent=st.integers(0, 40), data=st.data())
def test_shares_of_the_whole_budget_spend_it_exactly_too(
    kind: UniformLayers, layer_weights: list[float], recent: int, data: st.DataObject
) -> None:
    tokens = data.draw(st.integers(recent + 1, 300))
    budget = data.draw(st.integers(recent, tokens))
    counts = kind(layer_weights, AllocationBudget(budget=budget, sink=0, recent=recent, tokens=tokens))
    assert sum(counts) == (budget - recent) * len(layer_weights)
    assert all(0 <= count <= tokens - recent for count in counts)


@given(beta=st.integers(1, 40), layers=st.integers(2, 40), candidates=st.integers(1, 4000), data=st.data())
def test_a_pyramid_falls(beta: int, layers: int, candidates: int, data: st.DataObject) -> None:
    base = data.draw(st.integers(0, candidates))
    for variant in ("paper", "official"):
        counts = PyramidLayers(beta=beta)([1.0] * layers, terms(base, candidates, variant=variant, even_heads=False))
        assert list(counts) == sorted(counts, reverse=True)
        assert all(0 <= count <= candidates for count in counts)
        if variant == "official":  # steps of integers, which overspend by less than a unit a step
            assert 0 <= sum(counts) - base * layers <= layers * (layers - 1) / 2


def test_the_published_pyramid_is_uniform_for_short_prompts_with_even_heads() -> None:
    pyramid = PyramidLayers(beta=20)
    assert pyramid([1.0] * 3, terms(60, 100, variant="official")) == (60, 60, 60)
    assert pyramid([1.0] * 3, terms(60, 100, variant="official", even_heads=False)) == (100, 60, 20)
    assert pyramid([1.0] * 3, terms(40, 100, variant="official")) == (78, 40, 2)
    assert pyramid([1.0], terms(40, 100, variant="official")) == pyramid([1.0], terms(40, 100)) == (40,)


def test_published_entropy_shares_are_truncated_and_lose_what_does_not_fit() -> None:
    counts = EntropyLayers()([1.0, 1.0, 4.0], terms(35, 50, variant="official"))
    assert counts == (17, 17, 70)  # 105 / 6 truncated; the last layer has 50 candidates, its 20 are lost
    assert EntropyLayers()([1.0, 1.0, 4.0], terms(35, 50)) == (28, 27, 50)
    assert EntropyLayers()([0.0, 0.0], terms(35, 50, variant="official")) == (35, 35)


def test_a_published_preference_cuts_nothing_up_to_budget_and_recent() -> None:
    given = [1.0, 3.0]
    short = AllocationBudget(budget=40, sink=2, recent=8, tokens=48, variant="official")
    assert PreferenceLayers()(given, short) == (38, 38)
    longer = AllocationBudget(budget=40, sink=2, recent=8, tokens=49, variant="official")
    assert PreferenceLayers()(given, longer) == cascade(given, 30, 39) != (39, 39)


def test_the_cascade_never_gives_back_what_it_cut() -> None:
    """After three layers the second one has int(3.2), after four int(3.05) and one of the units missing from 16."""
    assert adjusted([1, 3, 10, 0], 16, 12) == [2, 4, 10, 0]
    assert cascade([1.0, 2.0, 7.0, 0.5], 4, 12) == (2, 3, 10, 0)
    assert cascade([1.0, 0.0, 3.0], 10, 30) == (8, 0, 22)
    assert cascade([1.0], 10, 30) == (10,)
    assert cascade([0.0, 0.0], 10, 30) == (10, 10)


@pytest.mark.parametrize(
    ("budgets", "total", "most", "expected"),
    [
        ([10, 20], 30, 50, [10, 20]),
        ([60, 10, 10], 80, 50, [50, 15, 15]),
        ([61, 10, 10], 81, 50, [50, 16, 15]),
        ([7, 7, 7], 23, 50, [8, 8, 7]),
        ([7, 7, 7], 20, 50, [6, 7, 7]),
        ([1, 7, 7], 13, 50, [1, 6, 6]),
        ([60, 60], 120, 50, [50, 50]),
    ],
    ids=str,
)
def test_budgets_are_adjusted_as_cake_does(budgets: list[int], total: int, most: int, expected: list[int]) -> None:
    assert adjusted(budgets, total, most) == expected


def test_entropy_is_one_for_even_scores_and_nothing_for_none() -> None:
    assert entropy(torch.full((2, 30), 0.3)) == pytest.approx(1)
    assert entropy(torch.zeros(2, 30)) == 0 and entropy(torch.ones(1, 1)) == 1
    lone = torch.zeros(2, 30)
    lone[1, 4] = 5
    assert entropy(lone) == 0
    p = torch.rand(3, 17, dtype=torch.float64)
    expected = -(p / p.sum() * (p / p.sum()).log()).sum() / math.log(51)
    assert entropy(p.float()) == pytest.approx(float(expected), rel=1e-6)


def test_preference_reads_raw_weights_outside_the_protected_columns() -> None:
    layer = random_layer(60, window=8)
    weights = seen_by_rows(layer, 8)[0][..., :54]
    dispersion, shift = preference(layer, layer.windows[0], recent=6)
    assert dispersion == pytest.approx(float(-(weights * (weights + 1e-10).log()).sum()), rel=1e-5)
    assert shift == pytest.approx(float(weights.var(1, correction=1).sum()), rel=1e-4)
    layer_weight = PreferenceLayers(tau1=1.6, tau2=0.4).layer_weight(layer, layer.windows[0], torch.ones(2, 54), 6)
    assert layer_weight == pytest.approx(dispersion ** (1 / 1.6) * shift ** (1 / 0.4), rel=1e-9)


@pytest.mark.parametrize("fields", [{"tau1": 0}, {"tau2": -1}, {"tau1": float("nan")}], ids=str)
def test_temperatures_are_above_zero(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"policy\.layers\.tau.=.*: allowed: a temperature above 0"):
        PreferenceLayers(**fields)
