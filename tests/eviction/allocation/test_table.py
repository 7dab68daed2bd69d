"""A budget table: what kvpress keeps by it, exact sums, and tables that are none."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvbench.config.overrides import parse
from kvbench.eviction.allocation.layers import TableLayers
from kvbench.eviction.allocation.shares import AllocationBudget
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.keys import KeyNorm
from kvbench.support.errors import MissingFile, UserError
from kvbench.work.planned import checked
from tests.arrays import random_cache

GOLDEN = Path(__file__).parents[2] / "golden"
TABLE = TableLayers(path=str(GOLDEN / "heads" / "budgets.npy"))
LUKV = json.loads((GOLDEN / "methods_2026" / "lukv.json").read_text("utf-8"))


def terms(budget: int, variant: str) -> AllocationBudget:
    return AllocationBudget(budget=budget, sink=4, recent=1, tokens=LUKV["tokens"], variant=variant)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", LUKV["kept_by_budget"])
def test_official_is_what_kvpress_keeps(budget: str) -> None:
    """`LUKVPress` in an environment of its own, see scripts/golden_evictions.py; it may evict protected tokens."""
    counts = np.array(TABLE.by_table(3, 2, terms(int(budget), "official")))
    assert (counts + 5 == np.maximum(5, LUKV["kept_by_budget"][budget])).all()


@pytest.mark.parametrize("budget", [5, 6, 29, 53, 96, 97])
def test_paper_spends_the_budget_and_stays_near_the_table(budget: int) -> None:
    counts = np.array(TABLE.by_table(3, 2, terms(budget, "paper")))
    assert counts.sum() == 6 * (budget - 5) and counts.min() >= 0 and counts.max() <= 92
    if 29 <= budget < 96:
        official = np.array(TABLE.by_table(3, 2, terms(budget, "official")))
        assert np.abs(counts - official).max() <= 2


def test_a_head_keeps_its_own_number_of_its_best() -> None:
    policy = Policy("lukv", window=1, sink=4, recent=1, layers=TABLE)
    decision = Eviction(policy, KeyNorm(), TokenBudget(53))(random_cache(97, layers=3))
    expected = np.array(TABLE.by_table(3, 2, terms(53, "paper"))) + 5
    assert decision.lengths.tolist() == expected.tolist()


def test_what_is_no_table_of_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not of a model that evicts from 2 layers with 2 cache heads"):
        TABLE.by_table(2, 2, terms(53, "paper"))
    with pytest.raises(MissingFile, match=r"no such file; expected a \.npy"):
        TableLayers(path=str(tmp_path / "none.npy"))
    np.save(tmp_path / "wrong.npy", np.zeros((3, 2)))
    with pytest.raises(UserError, match=r"has shape \[3, 2\]; expected a .npy of parts from 0 to 1"):
        TableLayers(path=str(tmp_path / "wrong.npy"))
    with pytest.raises(
        UserError, match="the table has 3 layers and 2 KV heads, but this model evicts from 4 layers with"
    ):
        TABLE.check_model(4, 2)
    np.save(tmp_path / "words.npy", np.full((99, 3, 2), "half"))
    with pytest.raises(UserError, match="is no array: its numbers are of the type <U4"):
        TableLayers(path=str(tmp_path / "words.npy"))
    (tmp_path / "text.npy").write_text("0.5", "utf-8")
    with pytest.raises(UserError, match="is no array"):
        TableLayers(path=str(tmp_path / "text.npy"))
    with pytest.raises(UserError, match=r"policy.layers.path=null: name a budget table, a .npy"):
        checked(parse(["policy=lukv"]), print)
