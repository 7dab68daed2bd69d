"""The command that the first run in a folder leads to."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.extras.hints.next_command import next_command
from kvbench.records import Row
from kvbench.work.planned import plan_sweep
from tests.cli.conftest import Command
from tests.embedded import FOLDER


def rows(*cells: tuple[str, str, float]) -> list[Row]:
    """Three rows of each cell: policy, budget, value."""
    return [
        Row(
            cell=f"{policy}{budget}",
            policy=policy,
            budget=budget,
            sample=sample,
            model="reference",
            task="ruler/niah_single_1",
            metric="string_match_all",
            value=value,
            **dict.fromkeys(("task_version", "context_length", "score", "variant", "layout", "schedule", "seed")),  # type: ignore[arg-type]
        )
        for policy, budget, value in cells
        for sample in range(3)
    ]


@pytest.fixture
def advice(tmp_path: Path) -> Callable[..., str]:
    """What is said after these rows of a sweep of SnapKV."""
    sweep = plan_sweep(["policy=snapkv", f"results.dir={tmp_path}", "budget=0.1"], lambda _: None)
    return lambda *cells: next_command(sweep, lambda _: rows(("full", "1.0", 1.0), *cells)) or ""


@pytest.mark.parametrize(
    ("cells", "reason", "words"),
    [
        ([("snapkv", "0.1", 0.0)], "the only cell is at the floor; try larger", "budget=0.1,0.2,0.4,0.6"),
        ([("snapkv", "0.4", 1.0)], "the only cell is at the ceiling; try smaller", "budget=0.05,0.1,0.2,0.4"),
        (
            [("snapkv", "0.4", 1.0), ("full reader=quest", "1.0", 1.0)],
            "at the ceiling; try smaller",
            "budget=0.05,0.1,0.2,0.4",
        ),
        ([("snapkv", "64", 0.0)], "try larger budgets", "budget=64,128,256,512"),
        (
            [("h2o_obcache", "0.1", 0.0), ("snapkv", "0.2", 0.0)],
            "all cells are at the floor",
            "budget=0.1,0.2,0.4,0.6,0.8",
        ),
        ([("snapkv", "0.1", 0.5)], "compare it with other methods", "policy=snapkv,streaming_llm,h2o"),
        ([("snapkv", "600KiB", 0.0)], "compare it with other methods", "policy=snapkv,streaming_llm,h2o"),
        ([("snapkv", "0.8", 0.0)], "compare it with other methods", "policy=snapkv,streaming_llm,h2o"),
        ([("snapkv", "0.1", 0.5), ("h2o_obcache", "0.1", 0.0)], "as an interactive page", "page.html"),
    ],
)
def test_the_next_command(
    advice: Callable[..., str], cells: list[tuple[str, str, float]], reason: str, words: str
) -> None:
    """One that a run takes, and one that tells more than the last."""
    text = advice(*cells)
    assert reason in text and text.endswith(words)
    command = shlex.split(text.rpartition(": ")[2])
    assert command[:2] == ["kvbench", "run"] or command[:3] == ["kvbench", "report", "html"]
    if command[1] == "run":
        assert len(plan_sweep(command[2:], lambda _: None).plan.cells) > 2


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0], "compare it with other methods"),
        ([1.0, None, None, None], "compare it with other methods"),
        ([1.0, 1.0, 1.0], "the only cell is at the ceiling"),
        ([1.0, 1.0, 1.0, None], "the only cell is at the ceiling"),
    ],
)
def test_an_end_of_the_scale_takes_samples(tmp_path: Path, values: list[float | None], reason: str) -> None:
    """A single one may be right by chance, and failed ones say nothing."""
    sweep = plan_sweep(["policy=snapkv", f"results.dir={tmp_path}", "budget=0.4"], lambda _: None)
    (row, *_) = rows(("snapkv", "0.4", 1.0))
    own = [
        replace(row, sample=sample, value=value, error=None if value else "out of memory")
        for sample, value in enumerate(values)
    ]
    said = next_command(sweep, lambda _: [*rows(("full", "1.0", 1.0)), *own])  # type: ignore[arg-type]
    assert said and said.startswith(reason)


def test_cells_that_failed_are_at_no_end(tmp_path: Path) -> None:
    sweep = plan_sweep(["policy=snapkv", f"results.dir={tmp_path}", "budget=0.4"], lambda _: None)
    made = rows(("full", "1.0", 1.0), ("snapkv", "0.4", 1.0))
    failed = [
        [replace(row, value=None, error="too small") for row in rows(("snapkv", budget, 0.0))]
        for budget in ("0.01", "0.02")
    ]
    most = next_command(sweep, lambda _: [*made, *failed[0], *failed[1]])  # type: ignore[arg-type]
    assert most and "ceiling" not in most
    made += rows(("snapkv", "0.6", 1.0))
    some = next_command(sweep, lambda _: [*made, *failed[0]])  # type: ignore[arg-type]
    assert some and some.startswith("all cells with a value are at the ceiling; try smaller budgets")


def test_nothing_helps_where_the_full_cache_fails(tmp_path: Path) -> None:
    sweep = plan_sweep(["policy=snapkv", f"results.dir={tmp_path}"], lambda _: None)
    text = next_command(sweep, lambda _: rows(("full", "1.0", 0.0), ("snapkv", "0.1", 0.0)))
    assert text and text.startswith("the full cache is at the floor; try another task or model")
    assert next_command(sweep, lambda _: rows(("full", "1.0", 0.0))) is None


def test_rows_of_a_server_lead_to_their_page(tmp_path: Path) -> None:
    """Its method is not chosen by `policy=`."""
    words = ["model=endpoint", f"model.path={FOLDER}", "endpoint.url=http://127.0.0.1:9/v1"]
    words += ["endpoint.method=snapkv", "endpoint.budget=256", "task.context_length=512", f"results.dir={tmp_path}"]
    said = next_command(plan_sweep(words, lambda _: None), lambda _: rows(("snapkv", "256", 0.0)))
    assert said is not None and "policy=" not in said and "kvbench report html" in said


def test_only_the_first_run_in_a_folder_names_it(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """The tiny model finds nothing."""
    command = ("run", *tiny, "policy=snapkv", "budget=0.2", "task.samples=1", "reference=full")
    assert "kvbench: the full cache is at the floor" in kvbench(*command).err
    assert "floor" not in kvbench(*command).err
    assert kvbench(*command, "--quiet", "results.dir=other").err == ""
