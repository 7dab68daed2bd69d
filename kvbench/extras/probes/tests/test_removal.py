"""The true eviction error: equal to removing every pair in turn, in every layout, for both outputs."""

import math

import numpy as np
import pytest
import torch

from kvbench.cache.attention import AttentionParams
from kvbench.extras.probes.query import Query, removal_errors
from kvbench.extras.probes.tests.conftest import World, world_of
from kvbench.extras.probes.tests.twin import without_one


@pytest.mark.parametrize("output", ["attention", "layer"])
@pytest.mark.parametrize("stored", [2, 6], ids=["kv_heads", "query_heads"])
def test_errors_are_those_of_removing_each_pair(world: World, stored: int, output: str) -> None:
    for layer, arrays in zip(world.scene.layers, world.arrays, strict=True):
        errors = world.scene.errors(layer, stored, output)  # type: ignore[arg-type]
        expected = without_one(arrays, world.last, world.tokens, len(world.ids), stored, whole=output == "layer")
        np.testing.assert_allclose(errors.numpy(), expected, rtol=1e-7, atol=1e-16)


def test_a_question_behind_the_cut_is_seen_and_stays() -> None:
    """The first decoded token then follows the question, whose pairs no cell could evict."""
    world = world_of(question=6)
    layer, arrays = world.scene.layers[1], world.arrays[1]
    expected = without_one(arrays, world.last, world.tokens, len(world.ids), 2, whole=False)
    assert expected.shape[1] == world.tokens == len(world.ids) - 7
    np.testing.assert_allclose(world.scene.errors(layer, 2).numpy(), expected, rtol=1e-7, atol=1e-16)


def test_the_last_query_of_the_prompt(world: World) -> None:
    layer, arrays = world.scene.layers[2], world.arrays[2]
    query = world.scene.query(layer, "prompt")
    expected = without_one(arrays, world.tokens - 1, world.tokens, world.tokens, 6, whole=False)
    np.testing.assert_allclose(removal_errors(query, 6).numpy(), expected, rtol=1e-7, atol=1e-16)


def query_of(tokens: int, rule: AttentionParams, seed: int = 0, scale: float = 1.0) -> Query:
    """A random query of 4 heads over 2 KV heads; the last column stays."""
    generator = torch.Generator().manual_seed(seed)
    query = scale * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    keys, values = (torch.randn(2, tokens, 6, generator=generator, dtype=torch.float64) + shift for shift in (0, 2))
    return Query(query, keys, values, rule, tokens - 1)


def test_sinks_and_caps_take_part_in_the_softmax() -> None:
    rule = AttentionParams(0.5, softcap=3.0, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
    query = query_of(9, rule)
    for head in range(4):
        keys, values = query.keys[head // 2].numpy(), query.values[head // 2].numpy()
        logits = 3.0 * np.tanh(keys @ query.query[head].numpy() * 0.5 / 3.0)
        powers, sink = np.exp(logits), math.exp(float(rule.sinks[head]))  # type: ignore[index]
        whole = (powers @ values) / (powers.sum() + sink)
        for gone in range(8):
            left = np.delete(powers, gone)
            after = (left @ np.delete(values, gone, axis=0)) / (left.sum() + sink)
            assert float(removal_errors(query, 4)[head, gone]) == pytest.approx(float(((after - whole) ** 2).sum()))


@pytest.mark.parametrize("output", ["attention", "layer"])
def test_a_pair_with_all_the_weight_is_worth_most(output: str) -> None:
    query = query_of(12, AttentionParams(1.0), scale=0.1)
    query.keys[0, 4] += 1e4 * query.query[0]
    matrix = torch.ones(5, 24, dtype=torch.float64) if output == "layer" else None
    errors = removal_errors(query, 2, matrix)
    assert bool(query.saturated.any()) and errors.isfinite().all() and int(errors[0].argmax()) == 4
