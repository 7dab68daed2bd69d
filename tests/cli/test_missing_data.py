"""A group of tasks some of which have no data: exit 3 before anything runs, all of them named, and the way on."""

from pathlib import Path

import pytest

from kvbench.config.entries import options
from tests.cli.conftest import Command, rows_of
from tests.tasks.longbench.conftest import row, write

BOTH = ("qasper", "hotpotqa")


@pytest.fixture
def longbench(tmp_path: Path) -> Path:
    """Two of the tasks."""
    config = tmp_path / "longbench" / "config"
    config.mkdir(parents=True)
    (config / "dataset2prompt.json").write_text(
        "{" + ", ".join(f'"{name}": "Read {{context}} then {{input}} so"' for name in BOTH) + "}"
    )
    (config / "dataset2maxlen.json").write_text('{"qasper": 4, "hotpotqa": 4}')
    for name in BOTH:
        write(tmp_path, name, row(name))
    return tmp_path


def test_all_that_is_missing_is_named_and_the_rest_can_be_run(kvbench: Command, longbench: Path, tiny: tuple[str, ...]):
    settings = [*tiny, f"data.root={longbench}", "data.verify=false", "policy=full"]
    refused = kvbench("run", *settings, "task=longbench/*")
    assert refused.code == 3 and not Path("out").exists()
    members = [name for name in options("task") if name.startswith("longbench/")]
    missing = [name for name in members if name.partition("/")[2] not in BOTH]
    assert (
        f"no data for 19 of 21 tasks: {', '.join(missing)}; no file {longbench}/longbench/2wikimqa.jsonl" in refused.err
    )
    *_, instead = refused.err.split("or run the 2 that have data: ")
    assert instead.strip() == "task=longbench/hotpotqa,longbench/qasper"
    assert kvbench("run", *settings, instead.strip()).code == 0
    assert {row.task for row in rows_of(Path("out"))} == {"longbench/hotpotqa", "longbench/qasper"}


def test_families_are_each_named_with_their_way(kvbench: Command, longbench: Path, tiny: tuple[str, ...]):
    refused = kvbench("run", *tiny, f"data.root={longbench}", "task=longbench/trec,infinitebench/passkey")
    assert refused.code == 3 and "or run" not in refused.err
    assert refused.err.index("longbench/trec.jsonl") < refused.err.index("infinitebench/passkey.jsonl")


def test_ruler_names_the_tasks_with_essays_and_passages(kvbench: Command, tiny: tuple[str, ...]):
    refused = kvbench("plan", *tiny, "data.root=nowhere", "task=ruler")
    assert refused.code == 3 and "no data for 7 of 13 tasks: ruler/niah_multikey_1, " in refused.err
    assert "ruler/qa_1, ruler/qa_2; no file " in refused.err
    assert refused.err.strip().endswith(
        "task=ruler/cwe,ruler/fwe,ruler/niah_multikey_2,ruler/niah_multikey_3,ruler/niah_single_1,ruler/vt"
    )
