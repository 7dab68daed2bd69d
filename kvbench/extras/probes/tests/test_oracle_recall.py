"""Recall of the oracle: against sets of Python, and what must hold whatever the model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.config.settings import build
from kvbench.eviction.pooling import Group
from kvbench.eviction.scores.attn import Attention, Cake
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.scores.score import Reduce, Score, ScoreInputs
from kvbench.extras.probes.oracle_recall import OracleRecall
from kvbench.extras.probes.scene import Scene
from kvbench.extras.probes.tests.conftest import TOKENS, World
from kvbench.extras.probes.tests.twin import without_one
from kvbench.run.cell import Cell

SIX = {"layout": "query_heads"}


@dataclass(frozen=True)
class PromptRecord(Score):
    """A score that is told the true errors."""

    scene: Scene
    name: str = "told"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(window=False)
    group: ClassVar[Group] = "sum"

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return self.scene.errors(layer, layer.query_heads).float()


@pytest.mark.parametrize(("window", "recent"), [(1, 0), (5, 0), (5, 4), (37, 0), ("all", 7)])
def test_recall_of_attention_is_that_of_python_sets(
    world: World, make_cell: Callable[..., Cell], window: int, recent: int
) -> None:
    probe, pairs = OracleRecall(windows=(window,), recents=(recent,)), 9
    recalls = {
        (number.layer, number.head): number for number in world.measured(probe, make_cell(budget=str(pairs), **SIX))
    }
    rows = TOKENS if window == "all" else window
    for layer, arrays in enumerate(world.arrays):
        errors = without_one(arrays, world.last, TOKENS, len(world.ids), 6, whole=False)
        for head in range(6):
            summed = np.zeros(TOKENS)
            for row in range(TOKENS - rows, TOKENS):
                summed[: row + 1] += arrays.weights(head, row, list(range(row + 1)))
            wanted = set(np.argsort(-errors[head], kind="stable")[:pairs].tolist())
            kept = set(range(TOKENS - recent, TOKENS))
            kept |= set(np.argsort(-summed[: TOKENS - recent], kind="stable")[: pairs - recent].tolist())
            recall = recalls[layer, head]
            assert (recall.window, recall.recent) == (rows, recent)
            assert recall.value == pytest.approx(len(wanted & kept) / pairs)


@pytest.mark.parametrize("layout", ["kv_heads", "query_heads"])
def test_the_oracle_recalls_itself(world: World, make_cell: Callable[..., Cell], layout: str) -> None:
    cell = make_cell(PromptRecord(world.scene), "8", layout=layout)
    recalls = world.measured(OracleRecall(windows=(1, 16), recents=(0,)), cell)
    assert len(recalls) == 2 * 3 * (2 if layout == "kv_heads" else 6) and {recall.value for recall in recalls} == {1.0}


def test_everything_is_recalled_where_everything_stays(world: World, make_cell: Callable[..., Cell]) -> None:
    probe = OracleRecall(windows=(5,), recents=(0, 4), output="layer")
    assert {recall.value for recall in world.measured(probe, make_cell(KeyNorm(), "1.0"))} == {1.0}


def test_a_window_longer_than_the_prompt_is_left_out(world: World, make_cell: Callable[..., Cell]) -> None:
    recalls = world.measured(OracleRecall(windows=(16, 64), recents=(0,)), make_cell(budget="5"))
    assert {recall.window for recall in recalls} == {16}


def test_what_the_policy_says_of_windows_and_protection_plays_no_part(
    world: World, make_cell: Callable[..., Cell]
) -> None:
    probe = OracleRecall(windows=(5,), recents=(2,))
    plain, other = (probe.judged(make_cell(budget="6", **own)) for own in ({}, {"window": 16, "recent": 5, "sink": 1}))
    assert plain.id == other.id


def test_refusals(world: World, make_cell: Callable[..., Cell]) -> None:
    with pytest.raises(ValueError, match=r"fewer than probe\.recents=20"):
        world.measured(OracleRecall(), make_cell(budget="10"))
    with pytest.raises(ValueError, match="variance over the observed rows"):
        OracleRecall(windows=(1,)).read_for(make_cell(Cake()))
    with pytest.raises(ValueError, match=r"probe\.windows="):
        OracleRecall(windows=())
    with pytest.raises(ValueError, match="allowed: 'attention' or 'layer'"):
        build("probe", {"_target_": "kvbench.extras.probes.oracle_recall.OracleRecall", "output": "values"})
    cell = make_cell(Attention())
    blocks = replace(cell, schedule=replace(cell.schedule, prefill_block=8))
    with pytest.raises(ValueError, match=r"schedule\.prefill_block=null"):
        OracleRecall().judged(blocks)
