"""How long the rest of a plan takes: which rows count, and which prompts `--measure` runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli.main import main
from kvbench.eviction.schedule import Schedule
from kvbench.extras.stores.packed import Packed
from kvbench.records import Row, read_processes, read_rows
from kvbench.run.cell import Cell
from kvbench.run.estimate import STEP_CELLS, SimilarRuns, estimate, first_prompts, starting
from kvbench.run.plan import Plan, plan
from kvbench.run.rows import unmeasured_row
from kvbench.work.plan_text import total_text
from tests.questions import Questions
from tests.run.test_prefill_job import cells

TASK = Questions(contexts=2, samples=4)


@pytest.fixture
def full_and_snapkv() -> tuple[Cell, ...]:
    """The full cache and SnapKV at two budgets: one group, a prefill for each of two contexts."""
    return cells("0.25", "0.5", task=TASK)


def row_of(cell: Cell, sample: int, prefill: float, evict: float, decode: float) -> Row:
    row = unmeasured_row(cell, next(iter(TASK.generate(len, [sample]))), None, "here", error="")
    return replace(row, error=None, prefill_seconds=prefill, evict_seconds=evict, decode_seconds=decode, store="flat")


def similar(rows: Sequence[Row], **more: Any) -> SimilarRuns:
    return SimilarRuns(tuple(rows), **more)


def left(cells: Sequence[Cell], rows: Sequence[Row]) -> Plan:
    return plan(cells, {(row.cell, row.sample) for row in rows})


def test_a_prompt_is_read_once_and_a_row_takes_what_rows_of_its_cell_took(full_and_snapkv: tuple[Cell, ...]) -> None:
    full, snapkv, _ = full_and_snapkv
    rows = [row_of(full, 0, 8.0, 0.0, 2.0), row_of(snapkv, 0, 6.0, 1.0, 0.5), row_of(snapkv, 2, 10.0, 2.0, 0.5)]
    sweep = left((full, snapkv), rows)
    assert sweep.prefills_to_do == 2 and sweep.rows_to_do == 5
    (seconds,) = estimate(sweep, similar(rows)).values()
    assert seconds == pytest.approx(2 * (8 + 6 + 10) / 3 + 1.5 + 3 * 2.0 + 2 * 0.5)
    done = [row_of(full, sample, 1.0, 1.0, 1.0) for sample in range(4)]
    assert estimate(left((full,), done), similar(done)) == {}
    failed = [replace(rows[1], error="too long", value=None)]
    assert list(estimate(left([snapkv], []), similar(failed)).values()) == [None], "it tells no time"


@pytest.mark.parametrize("padded", [False, True])
def test_what_cells_share_counts_once(full_and_snapkv: tuple[Cell, ...], padded: bool) -> None:
    """The scores of two budgets, and the steps of prompts that decode together, after one that decoded alone."""
    own = [
        replace(cell, task=Questions(contexts=6, samples=6), model=replace(cell.model, max_batch=12))
        for cell in full_and_snapkv
    ]
    rows = [row_of(own[0], 0, 8.0, 0.0, 3.0), *(row_of(cell, 0, 8.0, 2.0, 3.0) for cell in own[1:])]
    whole = similar(rows, padded=frozenset({"here"} if padded else ()))
    (seconds,) = estimate(left(own, rows), whole).values()
    assert seconds is not None
    alone, together = (1 / 3, 1 / 12) if padded else (1 + STEP_CELLS / 3, 1 + STEP_CELLS / 12)
    assert seconds == pytest.approx(5 * (8.0 + 2.0) + 15 * 3.0 * together / alone)
    apart = [cell.with_method(holder=Packed("int8")) for cell in own]
    rows = [replace(row, store="int8") for row in rows]
    (seconds,) = estimate(left(apart, []), similar(rows)).values()
    assert seconds == pytest.approx(6 * (8.0 + 2.0) + 18 * 3.0)


def test_a_start_takes_what_models_took_to_load(full_and_snapkv: tuple[Cell, ...]) -> None:
    full, sweep = full_and_snapkv[0], plan(full_and_snapkv, set())
    assert starting(sweep, similar([]), 2.0) == 4.0, "as long again, where nothing is known"
    assert starting(sweep, similar([], loading={full.model.label: [5.0, 7.0], "other": [90.0]}), 2.0) == 8.0
    assert starting(left([full], [row_of(full, sample, 1, 1, 1) for sample in range(4)]), similar([]), 2.0) == 2.0


def test_similar_rows_stand_in_for_a_cell_without_rows(full_and_snapkv: tuple[Cell, ...]) -> None:
    """Another budget is similar; another policy, schedule, store, length, benchmark or model is not."""
    full, snapkv, other_budget = full_and_snapkv
    rows = [row_of(snapkv, 0, 6.0, 1.0, 0.5)]
    (seconds,) = estimate(left([other_budget], []), similar(rows)).values()
    assert seconds == pytest.approx(2 * (6.0 + 1.0) + 4 * 0.5)
    changed = [
        full,
        replace(snapkv, schedule=Schedule("context", decode_every=4)),
        snapkv.with_method(holder=Packed("int8")),
    ]
    for cell in changed:
        assert list(estimate(left([cell], []), similar(rows)).values()) == [None]
    for name in ("context_length", "task", "model"):
        other = [replace(rows[0], cell="0f", **{name: 77 if name == "context_length" else "other/task"})]
        assert list(estimate(left([snapkv], []), similar(other)).values()) == [None]


def test_the_first_prompt_of_each_kind_of_group_is_measured(full_and_snapkv: tuple[Cell, ...]) -> None:
    full, snapkv, other_budget = full_and_snapkv
    whole = plan([full, snapkv], set())
    (group,) = first_prompts(whole, []).groups
    assert [list(job.missing) for job in group.jobs] == [[0]] and group.jobs[0].cells == (full, snapkv)
    rows = [row_of(full, 0, 1.0, 0.0, 1.0), row_of(snapkv, 0, 1.0, 0.0, 1.0)]
    assert not first_prompts(left([full, snapkv, other_budget], rows), rows).rows_to_do
    again = [replace(cell, schedule=Schedule("prompt")) for cell in (full, snapkv)]
    jobs = [len(group.jobs) for group in first_prompts(plan([full, snapkv, *again], set()), rows).groups]
    assert jobs == [0, 1]
    twin = [replace(cell, task=replace(TASK, words=TASK.words + 1)) for cell in (full, snapkv)]
    assert [len(group.jobs) for group in first_prompts(plan([full, snapkv, *twin], set()), []).groups] == [1, 0]


def test_an_estimate_says_what_is_missing_and_how_to_get_it() -> None:
    assert total_text({"a": 60.0, "b": 120.0}, 6.0).startswith("time: about 3.1 min: 6.00 s until models are loaded, ")
    assert "1 of 2 groups have no similar rows; kvbench plan --measure runs the first prompt" in total_text(
        {"a": 60.0, "b": None}, 6.0
    )


@pytest.mark.slow
def test_measuring_runs_first_prompts_and_a_run_goes_on_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["policy=full,snapkv", "task.context_length=400", "task.samples=3", f"results.dir={tmp_path}"]
    assert main(["plan", *words, "budget=0.2"]) == 0
    assert "--measure runs the first prompt of each" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert main(["plan", "--measure", *words, "budget=0.2"]) == 0
    assert "from rows of similar cells" in capsys.readouterr().out
    assert [list(process.loading) for process in read_processes(tmp_path)] == [["reference"]]
    assert [(row.sample, row.policy, row.error) for row in read_rows(tmp_path)] == [
        (0, "full", None),
        (0, "snapkv", None),
    ]
    assert main(["plan", *words, "budget=0.1,0.2,64"]) == 0  # no new kind of cell
    assert "time: unknown" not in capsys.readouterr().out
    assert main(["plan", *words[1:], "policy=tova_obcache"]) == 0
    assert "1 of 1 groups have no similar rows" in capsys.readouterr().out
    assert main(["run", *words, "budget=0.2", "--quiet"]) == 0
    assert len(read_rows(tmp_path)) == 6
