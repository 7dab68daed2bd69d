"""Cells of a sweep share their parts; each is what it would be if it were asked for alone."""

import time
from collections.abc import Sequence

import pytest

from kvbench.cli.cells import Cells
from kvbench.cli.compose import combinations
from kvbench.cli.overrides import parse
from kvbench.plan import Cell

SWEEP = (
    "policy=snapkv,streaming_llm",
    "score=random,attn,caote",
    "policy.window=8,16",
    "budget=0.1,32",
    "seed=1,2",
    "task.context_length=512,1024",
    "schedule.decode_every=null,4",
)


def cells_of(arguments: Sequence[str]) -> list[Cell]:
    built = Cells()
    return [built.cell(tree) for tree in combinations(parse(arguments))]


def test_a_sweep_has_the_cells_of_its_combinations() -> None:
    """Interpolations too: seeds reach tasks and the score that draws, budgets that a window is made of."""
    together = cells_of(SWEEP)
    assert len(together) == 2 * 3 * 2**5
    keys = [word.partition("=")[0] for word in SWEEP]
    lists = [word.partition("=")[2].split(",") for word in SWEEP]
    for place in range(0, len(together), 17):
        rest, words = place, []
        for key, values in reversed(list(zip(keys, lists, strict=True))):
            rest, at = divmod(rest, len(values))
            words.append(f"{key}={values[at]}")
        words.sort(key=lambda word: word.partition("=")[0].count("."))
        (alone,) = cells_of(words)
        assert any(alone == cell and alone.id == cell.id for cell in together), words
    assert len({id(cell.policy) for cell in together}) <= 2 * 3 * 2, "parts are built once"
    assert {cell.score.seed for cell in together if cell.score_label == "random"} == {1, 2}  # type: ignore[attr-defined]


def test_an_interpolation_follows_what_it_leads_to() -> None:
    found = cells_of(["policy=snapkv", "budget=24,48", "policy.window=${budget}", "seed=3"])
    assert [(cell.budget.of(999), cell.policy.window) for cell in found] == [(24, 24), (48, 48)]


def test_many_cells_take_little_time() -> None:
    """No time is asserted that a busy machine could miss: a cell costs what a hundred composed parts would not."""
    budgets = ",".join(map(str, range(100, 1100)))
    start = time.process_time()
    few = cells_of(["policy=snapkv,tova", "budget=100"])
    a_few = time.process_time() - start
    start = time.process_time()
    many = cells_of(["policy=snapkv,tova", f"budget={budgets}"])
    assert len({cell.id for cell in many}) == 1000 * len(few)
    assert time.process_time() - start < 100 * a_few


def test_a_setting_that_is_missing_is_asked_for() -> None:
    with pytest.raises(ValueError, match="budget has no default"):
        cells_of(["budget=???"])
