"""What cells of one prompt share: raw scores once for all policies with the same votes, whatever the budgets."""

import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.allocation.heads import FlatHeads
from kvbench.eviction.allocation.layers import PyramidLayers
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.scores.score import Reduce
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.prompt import Prompt
from kvbench.run.cell import Cell
from kvbench.run.evict_cell import SharedPrefill, _packed_on_device, evict_cell, eviction_of
from kvbench.run.eviction_method import EvictionMethod
from tests.arrays import random_cache
from tests.questions import Questions

SNAPKV = Policy("snapkv", window=16, recent=9, pool=Pool("max", 5))
POLICIES = (
    SNAPKV,
    replace(SNAPKV, name="ada", heads=FlatHeads()),
    replace(SNAPKV, name="pyramid", layers=PyramidLayers(beta=3), heads=FlatHeads()),
    Policy("h2o_obcache", window=16, recent=3),
    Policy("apart", window=16, recent=3, layout="query_heads"),
)
MODEL: Any = SimpleNamespace(engine=SimpleNamespace(mark=time.perf_counter))


@dataclass(frozen=True)
class Counting(Attention):
    """The attention score, which writes down where it was asked."""

    name: str = "counting"
    recorders: tuple[Any, ...] = ()

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        self.recorders[0].seen.append((layer.index, reduce))
        return super().__call__(layer, window, reduce)


class Seen:
    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []


def cells_of(*policies: Policy, score: Any) -> list[Cell]:
    method = EvictionMethod(SNAPKV, score, parse_budget("0.3"), "", None)
    first = Cell(ModelSpec("reference"), Questions(), method, Schedule(), 1)
    budgets = [parse_budget(text) for text in ("0.2", "0.3", "0.6")]
    return [first.with_method(policy=policy, budget=budget) for policy in policies for budget in budgets]


def test_policies_with_the_same_votes_score_each_layer_once() -> None:
    cache, seen = random_cache(70, layers=2, window=16), Seen()
    score = Counting(recorders=(seen,))
    cells = cells_of(*POLICIES, replace(SNAPKV, name="mean", reduce="mean"), score=score)
    shared = SharedPrefill(cache, Prompt(tuple(range(70)), (), "x"), cells)
    for cell in cells:
        compressed = evict_cell(MODEL, cell, shared)
        alone = eviction_of(cell, shared.prompt)(cache)
        for layer, other in zip(compressed.cache.layers, alone.layers, strict=True):
            assert layer.offsets == other.offsets
            assert torch.equal(layer.keys, other.keys) and torch.equal(layer.positions, other.positions)
    together = [(0, "sum"), (1, "sum"), (0, "mean"), (1, "mean")]
    by_themselves = len(cells) * 2
    assert len(seen.seen) == len(together) + by_themselves
    assert [call for place, call in enumerate(seen.seen) if place < 2] == together[:2]
    assert len(shared.rankings) == 4  # snapkv, ada and pyramid rank alike; h2o_obcache, apart and mean do not


def test_scores_without_votes_do_not_depend_on_the_window() -> None:
    cache = random_cache(40, layers=2, window=16)
    cells = cells_of(Policy("plain"), Policy("wide", window=3), score=KeyNorm())
    shared = SharedPrefill(cache, Prompt(tuple(range(40)), (), "x"), cells)
    lengths = {cell.policy.name: evict_cell(MODEL, cell, shared).result.lengths for cell in cells}
    assert len(shared.rankings) == 1 and lengths["plain"] == lengths["wide"]


@pytest.mark.parametrize("tokens", [1, 8, 61, 64])
def test_a_gpu_packs_masks_as_numpy_does(tokens: int) -> None:
    masks = torch.rand(5, tokens, generator=torch.Generator().manual_seed(tokens)) < 0.4
    expected = np.packbits(masks.numpy(), axis=1)
    assert np.array_equal(_packed_on_device(masks.clone()).numpy(), expected)
