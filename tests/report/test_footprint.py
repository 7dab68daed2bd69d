"""The footprint of a request, and the smallest that keeps enough of the full cache's accuracy."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli.main import main
from kvbench.report.formats.emit import write_report
from kvbench.report.selection import NothingSelected
from kvbench.report.tables.footprint import Life, footprints, report_of
from kvbench.support.errors import CannotTell, UserError

WARN = pytest.fail


def walked(life: Life) -> float:
    """The same by a walk over the tokens with a counter."""
    pairs, held, full = 0.0, 0.0, 0
    for token in range(1, life.read + life.later + 1):
        pairs, full = pairs + 1, full + token
        held += pairs * (life.copies if life.block or token > life.read else 1)
        if token <= life.read:
            if token == life.read or (life.block and token % life.block == 0):
                pairs = min(pairs, life.kept)
        elif life.every and (token - life.read) % life.every == 0:
            pairs = min(pairs, max(life.kept, life.limit))
    return held / full


@pytest.mark.parametrize(
    "life",
    [
        Life(1000, 1000, 50),
        Life(1000, 0, 0),
        Life(100, 10, 0),
        Life(100, 10, 50),
        Life(100, 10, 50, block=20),
        Life(100, 30, 50, block=16, every=8),
        Life(7, 7, 3),
        Life(64, 8, 200, every=1),
        Life(150, 150, 4000, every=128, limit=1024),
        Life(100, 10, 50, copies=4),
        Life(100, 10, 50, block=20, every=8, copies=4),
    ],
)
def test_a_footprint_counts_pairs_over_the_whole_life(life: Life) -> None:
    assert life.footprint == pytest.approx(walked(life), abs=1e-12)


@pytest.fixture
def folder(cell, results) -> Path:
    """The full cache answers 9 of 10 prompts; SnapKV 8 at 0.1, 9 at 0.2; H2O 3."""

    def rows(policy: str, budget: str, right: int, kept: float, **columns: object):
        sizes = {"prompt_tokens": 100, "new_tokens": 10, "full_cache_bytes": 1000, "peak_bytes": 400}
        values = [1.0] * right + [0.0] * (10 - right)
        return cell(values, policy, budget=budget, kept_tokens=100 * kept, kept_fraction=kept, **sizes | columns)

    return results(
        rows("full", "1.0", 9, 1.0),
        rows("snapkv", "0.1", 8, 0.1),
        rows("snapkv", "0.2", 9, 0.2),
        rows("h2o", "0.4", 3, 0.4),
    )


def test_the_smallest_budget_that_keeps_enough_is_chosen(folder: Path) -> None:
    snapkv, h2o = footprints(folder, WARN)
    assert (snapkv.policy, snapkv.budget, snapkv.enough, snapkv.full) == ("snapkv", "0.2", True, 0.9)
    assert snapkv.footprint == pytest.approx(walked(Life(100, 20, 10))) and snapkv.peak_bytes == 1000
    assert (h2o.policy, h2o.budget, h2o.enough, h2o.mean) == ("h2o", "0.4", False, 0.3)
    assert footprints(folder, WARN, least=0.8)[0].budget == "0.1"


@pytest.mark.parametrize(("right", "text"), [((0, 0), "all 0"), ((0, 1), "best 0.2")])
def test_where_no_budget_keeps_enough_the_best_is_named_unless_all_are_at_0(cell, results, right, text: str) -> None:
    sizes = {"prompt_tokens": 100, "new_tokens": 10}
    full = cell([1.0] * 4, "full", budget="1.0", kept_tokens=100.0, kept_fraction=1.0, **sizes)
    evicted = [
        cell([1.0] * n + [0.0] * (4 - n), budget=budget, kept_tokens=kept, kept_fraction=kept / 100, **sizes)
        for n, budget, kept in zip(right, ("0.1", "0.2"), (10.0, 20.0), strict=True)
    ]
    (table,) = report_of(results(full, *evicted), WARN).tables
    assert [figure.mean for figure in table.lines[0].figures][4] == text


def test_what_a_row_says_of_its_life(cell, results) -> None:
    """A short prompt grows to the budget of its long answer; pairs stored for every query head count that often."""
    sizes = {"prompt_tokens": 100, "new_tokens": 900, "full_cache_bytes": 1000, "peak_bytes": 400}
    whole = {"kept_tokens": 100.0, "kept_fraction": 1.0} | sizes
    part = {"kept_tokens": 20.0, "kept_fraction": 0.2} | sizes
    every = cell([0.5], "rkv", budget="300", schedule="prompt decode_every=64", **whole)
    apart = cell([0.5], budget="0.2", cache_bytes=600, layout="query_heads", **part)
    in_bytes = [replace(row, policy="tova", cell="b" * 16, budget="3000B") for row in every]
    answers = cell([0.5], "h2o", budget="0.2", schedule="prompt decode_every=8 answer_budget=30", **part)
    full = cell([0.5], "full", **whole)
    lines = footprints(results(full, every, in_bytes, apart, answers), WARN)
    by_policy = {line.policy: line.footprint for line in lines}
    assert by_policy["tova"] == by_policy["rkv"]
    assert by_policy["rkv"] == pytest.approx(walked(Life(100, 100, 900, every=64, limit=300)))
    assert by_policy["snapkv"] == pytest.approx(walked(Life(100, 20, 900, copies=3)))
    assert by_policy["h2o"] == pytest.approx(walked(Life(100, 20, 900, every=8, limit=50)))


def test_only_samples_that_the_full_cache_has_count_and_without_it_there_are_none(cell, results) -> None:
    sizes = {"prompt_tokens": 100, "new_tokens": 10, "kept_tokens": 100.0, "kept_fraction": 1.0}
    full, evicted = cell([1.0, 1.0], "full", **sizes), cell([0.0, 1.0, 1.0, "failed"], budget="0.5", **sizes)
    folder = results(full[:1], evicted)
    (line,) = footprints(folder, WARN)
    assert (line.n, line.mean, line.full) == (1, 0.0, 1.0)
    with pytest.raises(NothingSelected, match="policy=full"):
        footprints(folder, WARN, {"policy": ["snapkv"]})


def test_what_is_evicted_from_after_turns_of_unknown_lengths_is_left_out(cell, results) -> None:
    sizes = {"prompt_tokens": 100, "new_tokens": 10, "kept_tokens": 20.0, "kept_fraction": 0.2}
    full = cell([0.5], "full", **sizes | {"kept_tokens": 100.0, "kept_fraction": 1.0})
    once, turns = (cell([0.5], schedule=f"context{block}", **sizes) for block in ("", " prefill_block=turn"))
    warnings = list[str]()
    (line,) = footprints(results(full, once, turns), warnings.append)
    assert (line.schedule, line.reading) == ("context", 1.0)
    assert warnings == ["1 row left out: prefill_block=turn, and rows do not say how long turns are"]


@pytest.mark.parametrize("at", [0.0, 1.0, -0.5])
def test_a_part_of_the_accuracy_is_between_none_and_all(folder: Path, at: float) -> None:
    with pytest.raises(UserError, match=f"at={at:g}: allowed: a number between 0 and 1"):
        report_of(folder, WARN, at=at)


def test_every_format_has_every_line(folder: Path) -> None:
    for form in ("text", "markdown", "csv", "json"):
        out = io.StringIO()
        write_report(report_of(folder, WARN), form, out)
        assert out.getvalue().count("snapkv") == out.getvalue().count("h2o") == 1
    assert json.loads(out.getvalue())[0]["budget"] == "0.2"


def test_the_floor_and_the_ceiling_tell_nothing(cell, results, tmp_path: Path) -> None:
    """Such a task is left out; where no other is there, the command ends with one sentence and exit code 5."""
    sizes = {"prompt_tokens": 100, "new_tokens": 10}

    def task(name: str, full: float, evicted: float):
        whole = cell([full] * 4, "full", budget="1.0", kept_tokens=100.0, kept_fraction=1.0, task=name, **sizes)
        return whole, cell([evicted] * 4, budget="0.1", kept_tokens=10.0, kept_fraction=0.1, task=name, **sizes)

    folder, told = results(*task("low", 0.0, 0.0), *task("high", 1.0, 1.0), *task("mid", 1.0, 0.0)), []
    assert {line.task for line in footprints(folder, told.append)} == {"mid"}
    assert sorted(text.split(":")[1] for text in told if text.startswith("left out")) == [" high", " low"]
    with pytest.raises(CannotTell, match="low: the full cache is at the floor"):
        footprints(folder, WARN, {"task": ["low"]})
    assert main(["report", "footprint", "--results", str(folder), "task=high"]) == 5
