"""What a whole cut costs: layer loss and its bound, set errors, shares of the true error, by brute force and theory."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.cache.attention import AttentionParams
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.scores.random import Random
from kvbench.extras.probes.losses import EvictionError, LayerLoss, SetError, bound, joint, loss, singles
from kvbench.extras.probes.query import Query
from kvbench.extras.probes.tests.conftest import TOKENS, World
from kvbench.extras.probes.tests.test_removal import query_of
from kvbench.extras.probes.tests.twin import without_one
from kvbench.run.cell import Cell

Found = dict[tuple[int, int | None, str], float | None]


def numbers(world: World, probe: object, cell: Cell) -> Found:
    return {(number.layer, number.head, number.quantity): number.value for number in world.measured(probe, cell)}  # type: ignore[arg-type]


@pytest.mark.parametrize(("at", "layout"), [("prompt", "kv_heads"), ("decode", "query_heads")])
def test_layer_loss_is_what_the_output_really_loses(
    world: World, make_cell: Callable[..., Cell], at: str, layout: str
) -> None:
    cell = make_cell(KeyNorm(), "0.3", layout=layout)
    measured = numbers(world, LayerLoss(at=at), cell)  # type: ignore[arg-type]
    row, columns = (TOKENS - 1, TOKENS) if at == "prompt" else (world.last, len(world.ids))
    for layer, (arrays, kept) in enumerate(zip(world.arrays, world.scene.decide(cell).kept, strict=True)):
        before, after, evicted = [], [], 0.0
        for head in range(6):
            marks = kept[head * len(kept) // 6].tolist()
            stay = [column for column in range(columns) if column >= TOKENS or marks[column]]
            weights = arrays.weights(head, row, list(range(columns)))
            before.append(arrays.output(head, row, list(range(columns))))
            after.append(arrays.output(head, row, stay))
            gone = sum(weights[column] for column in range(columns) if column not in stay)
            evicted += gone * max(float(np.abs(arrays.values[head // 3][column]).sum()) for column in range(columns))
        whole = arrays.matrix @ np.concatenate(before)
        lost = np.abs(whole - arrays.matrix @ np.concatenate(after)).sum()
        most = max(float(np.abs(arrays.matrix[:, column]).sum()) for column in range(arrays.matrix.shape[1]))
        assert measured[layer, None, "loss"] == pytest.approx(lost)
        assert measured[layer, None, "relative"] == pytest.approx(lost / np.abs(whole).sum())
        assert measured[layer, None, "bound"] == pytest.approx(2 * most * evicted)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(["plain", "sinks", "cap"]), st.floats(0.1, 3.0), st.floats(0.0, 1.0))
def test_theorem_1_bounds_the_loss(seed: int, kind: str, scale: float, share: float) -> None:
    """Whatever is kept, nothing included; with a learned sink and capped logits too."""
    rules = {
        "plain": AttentionParams(1.0),
        "sinks": AttentionParams(1.0, sinks=torch.tensor([0.0, 1.0, -2.0, 3.0])),
        "cap": AttentionParams(1.0, 2.0),
    }
    generator = torch.Generator().manual_seed(seed)
    query = query_of(14, rules[kind], seed, scale)
    kept, matrix = (
        torch.rand(4, 13, generator=generator) < share,
        torch.randn(7, 24, generator=generator, dtype=torch.float64),
    )
    assert loss(query, kept, matrix) <= bound(query, kept, matrix) * (1 + 1e-9) + 1e-10  # rounding


def test_a_head_that_is_left_nothing_puts_out_nothing() -> None:
    query = query_of(8, AttentionParams(1.0))
    alone = Query(query.query, query.keys, query.values, query.rule, 8)
    kept = torch.ones(4, 8, dtype=torch.bool)
    kept[2] = False
    left = alone.without(kept)
    assert bool((left[2] == 0).all()) and torch.allclose(left[[0, 1, 3]], alone.outputs[[0, 1, 3]])
    assert bool(joint(alone, kept)[2].isnan()) and not bool(joint(alone, kept)[[0, 1, 3]].isnan().any())


@pytest.mark.parametrize("probe", [LayerLoss(), LayerLoss(at="decode"), SetError(), EvictionError()], ids=repr)
def test_nothing_is_lost_where_everything_stays(world: World, make_cell: Callable[..., Cell], probe: object) -> None:
    measured = numbers(world, probe, make_cell(budget="1.0"))
    lost = [v for (_, _, what), v in measured.items() if what not in ("total", "ratio", "best_share", "lost_share")]
    assert lost and all(value == pytest.approx(0, abs=1e-12) for value in lost)
    assert all(value is None for (_, _, what), value in measured.items() if what == "ratio")
    assert all(value == 0 for (_, _, what), value in measured.items() if what == "lost_share")


def test_the_joint_error_is_that_of_removing_the_set(world: World, make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(Random(seed=3), "0.4")
    measured = numbers(world, SetError(), cell)
    every = list(range(len(world.ids)))
    for layer, (arrays, kept) in enumerate(zip(world.arrays, world.scene.decide(cell).kept, strict=True)):
        for head in range(6):
            gone = [column for column in range(TOKENS) if not kept[head // 3, column]]
            whole = arrays.output(head, world.last, every)
            left = arrays.output(head, world.last, [column for column in every if column not in gone])
            alone = [arrays.output(head, world.last, [c for c in every if c != column]) for column in gone]
            expected = float(np.linalg.norm(whole - left))
            apart = sum(float(np.linalg.norm(whole - output)) for output in alone)
            assert measured[layer, head, "joint"] == pytest.approx(expected)
            assert measured[layer, head, "singles"] == pytest.approx(apart)
            assert measured[layer, head, "ratio"] == pytest.approx(expected / apart)
            weight = arrays.weights(head, world.last, every)[gone].sum()
            assert measured[layer, head, "weight"] == pytest.approx(weight)


def test_a_set_of_one_costs_what_it_costs_alone() -> None:
    query = query_of(11, AttentionParams(1.0))
    kept = torch.ones(2, 10, dtype=torch.bool)
    kept[0, 4], kept[1, 7] = False, False
    torch.testing.assert_close(joint(query, kept), singles(query, kept))


@pytest.mark.parametrize("output", ["attention", "layer"])
def test_lost_is_the_error_of_what_goes(world: World, make_cell: Callable[..., Cell], output: str) -> None:
    cell = make_cell(KeyNorm(), "9")
    measured = numbers(world, EvictionError(output=output), cell)  # type: ignore[arg-type]
    for layer, (arrays, kept) in enumerate(zip(world.arrays, world.scene.decide(cell).kept, strict=True)):
        errors = without_one(arrays, world.last, TOKENS, len(world.ids), 2, whole=output == "layer")
        for head in range(2):
            gone = errors[head][~kept[head].numpy()]
            assert measured[layer, head, "total"] == pytest.approx(errors[head].sum())
            assert measured[layer, head, "lost"] == pytest.approx(gone.sum())
            assert measured[layer, head, "lost_share"] == pytest.approx(gone.sum() / errors[head].sum())
            least = np.sort(errors[head])[: len(gone)].sum() / errors[head].sum()
            assert measured[layer, head, "best_share"] == pytest.approx(least)


def test_every_pair_has_its_error_where_positions_are_asked_for(world: World, make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(budget="9")
    measured = [number for number in world.measured(EvictionError(positions=True), cell) if number.quantity == "error"]
    assert len(measured) == 3 * 2 * TOKENS
    for layer in range(3):
        errors = world.scene.errors(world.scene.layers[layer], 2)
        own = [number for number in measured if number.layer == layer]
        assert all(number.value == float(errors[number.head or 0, number.position or 0]) for number in own)
