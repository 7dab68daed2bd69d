"""Rank correlations and head scores: against scipy and loops, and what theory says of them."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import spearmanr

from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.host import Caote, FastCaote
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.eviction.scores.obcache import ExactRemoval, OBCacheValue
from kvbench.extras.probes.rankings import HeadScores, RankCorrelation, spearman
from kvbench.extras.probes.tests.conftest import TOKENS, World
from kvbench.extras.probes.tests.twin import Arrays, without_one
from kvbench.run.cell import Cell


def caote_of(arrays: Arrays, head: int, row: int, fast: bool) -> np.ndarray:
    """Equations 6 and 8 of CAOTE at one row."""
    values = arrays.values[head // arrays.group][: row + 1]
    weights = arrays.weights(head, row, list(range(row + 1)))
    centre = values.mean(axis=0) if fast else weights @ values
    return weights / (1 - weights) * np.linalg.norm(values - centre, axis=1)


@pytest.mark.parametrize("fast", [False, True], ids=["caote", "fastcaote"])
def test_spearman_of_attention_with_caote_is_that_of_scipy(
    world: World, make_cell: Callable[..., Cell], fast: bool
) -> None:
    probe = RankCorrelation(against=FastCaote() if fast else Caote())
    cell = make_cell(OBCacheValue(), window=1, layout="query_heads")
    measured = {(number.layer, number.head): number.value for number in world.measured(probe, cell)}
    for layer, arrays in enumerate(world.arrays):
        for head in range(6):
            weights = arrays.weights(head, TOKENS - 1, list(range(TOKENS)))
            ours = weights**2 * (arrays.values[head // 3][:TOKENS] ** 2).sum(axis=1)
            expected = spearmanr(ours, caote_of(arrays, head, TOKENS - 1, fast)).statistic
            assert measured[layer, head] == pytest.approx(expected, abs=1e-3)  # scores in float32 may swap neighbours


def test_spearman_with_the_true_error_of_the_first_decoded_token(world: World, make_cell: Callable[..., Cell]) -> None:
    cell = make_cell(KeyNorm(), sink=2, recent=3)
    measured = {
        (number.layer, number.head): number.value for number in world.measured(RankCorrelation(against=None), cell)
    }
    for layer, arrays in enumerate(world.arrays):
        errors = without_one(arrays, world.last, TOKENS, len(world.ids), 2, whole=False)
        for head in range(2):
            norms = -np.linalg.norm(arrays.keys[head][:TOKENS], axis=1)
            expected = spearmanr(norms[2:-3], errors[head][2:-3]).statistic
            assert measured[layer, head] == pytest.approx(expected, abs=1e-3)


def test_exact_removal_agrees_with_itself(world: World, make_cell: Callable[..., Cell]) -> None:
    measured = world.measured(RankCorrelation(), make_cell(ExactRemoval(), window=5))
    assert [number.value for number in measured] == pytest.approx([1.0] * 6)


def test_caote_of_one_row_ranks_as_exact_removal(world: World, make_cell: Callable[..., Cell]) -> None:
    """Equation 6 is its square root, for one row and one query head."""
    cell = make_cell(Caote(), window=1, layout="query_heads")
    assert all(number.value == pytest.approx(1.0, abs=1e-3) for number in world.measured(RankCorrelation(), cell))


def test_spearman_is_undefined_where_nothing_is_ranked() -> None:
    ramp = np.arange(5.0)
    assert spearman(ramp, np.ones(5)) is None and spearman(ramp[:1], ramp[:1]) is None
    assert spearman(ramp, -ramp) == pytest.approx(-1)
    tied = np.array([1.0, 1.0, 2.0, 5.0, 5.0])
    assert spearman(ramp, tied) == pytest.approx(spearmanr(ramp, tied).statistic)


def test_budgets_play_no_part_in_rankings(make_cell: Callable[..., Cell]) -> None:
    for probe in (RankCorrelation(), HeadScores()):
        assert probe.judged(make_cell(budget="0.1")).id == probe.judged(make_cell(budget="7")).id


def test_a_policy_without_a_score_has_none_to_judge(make_cell: Callable[..., Cell]) -> None:
    cell = make_cell().with_method(policy=Policy("full", accepts=()))
    for probe in (RankCorrelation(), HeadScores()):
        with pytest.raises(ValueError, match="policy full takes no score"):
            probe.judged(cell)


@pytest.mark.parametrize("merge", ["max", "mean"])
def test_a_head_is_worth_what_its_pairs_are(world: World, make_cell: Callable[..., Cell], merge: str) -> None:
    cell = make_cell(Attention(), window=5, group="max", sink=2, recent=4)
    measured = {(number.layer, number.head): number.value for number in world.measured(HeadScores(merge=merge), cell)}  # type: ignore[arg-type]
    for layer, arrays in enumerate(world.arrays):
        for store in range(2):
            summed = np.zeros((3, TOKENS))
            for member in range(3):
                for row in range(TOKENS - 5, TOKENS):
                    summed[member, : row + 1] += arrays.weights(3 * store + member, row, list(range(row + 1)))
            candidates = summed.max(axis=0)[2:-4]
            expected = candidates.max() if merge == "max" else candidates.mean()
            assert measured[layer, store] == pytest.approx(expected, rel=1e-5)


def test_a_head_without_candidates_is_worth_nothing_known(world: World, make_cell: Callable[..., Cell]) -> None:
    measured = world.measured(HeadScores(), make_cell(window=5, recent=TOKENS))
    assert [number.value for number in measured] == [None] * 6
