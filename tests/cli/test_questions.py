"""Several questions on one compressed cache, from the command line: one prefill, one cut, a row each."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.cli.conftest import Command, rows_of
from tests.tasks.scbench.rows import row, write

FACTS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. " * 4


@pytest.fixture
def asking(tiny: tuple[str, ...], tmp_path: Path) -> tuple[str, ...]:
    """Two contexts, two questions about the first and three about the second."""
    three = {"prompts": [FACTS + "b", "What is back?", "And here?", "And then?"], "ground_truth": ["x", "y", "z"]}
    write(tmp_path / "data", "scbench/kv", row("kv", prompts=[FACTS, "Sky?", "Grass?"]), row("kv", **three))
    return (*tiny, "task=scbench/kv", "task.samples=50", "data.root=data")


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()


def test_questions_share_prefill_and_cut(kvbench: Command, asking: tuple[str, ...]) -> None:
    finished = kvbench("run", *asking, "policy=kvzip,snapkv", "budget=0.3")
    assert finished.code == 0 and "10 rows to run from 2 prompts" in finished.err, finished.err
    rows = sorted(rows_of(Path("out")), key=lambda row: (row.policy, row.sample))
    assert [row.question_number for row in rows] == [1, 2, 1, 2, 3] * 2
    for policy in ("kvzip", "snapkv"):
        own = [row for row in rows if row.policy == policy]
        by_context = {row.context_sha256: {one.kept_sha256 for one in own if one.context_sha256 == row.context_sha256}
                      for row in own}  # fmt: skip
        assert len(by_context) == 2 and all(len(kept) == 1 for kept in by_context.values())
    assert all(row.schedule == "context" and row.metric == "kvzip_inclusion" for row in rows)


def test_questions_asked_alone_are_the_same_rows(kvbench: Command, asking: tuple[str, ...]) -> None:
    """A run that stops within a context goes on with its other questions; the cut is made anew and is the same."""
    kvbench("run", *asking, "policy=snapkv", "budget=0.3")
    kvbench("run", *asking, "policy=snapkv", "budget=0.3", "task.samples=1", "results.dir=parts")
    finished = kvbench("run", *asking, "policy=snapkv", "budget=0.3", "results.dir=parts")
    assert finished.code == 0 and "4 rows to run from 2 prompts" in finished.err, finished.err
    whole, parts = ({row.sample: row.outcome() for row in rows_of(Path(name))} for name in ("out", "parts"))
    assert whole == parts


def test_the_instruction_is_in_the_head_that_kvzip_keeps(kvbench: Command, asking: tuple[str, ...]) -> None:
    kvbench("run", *asking, "policy=kvzip", "budget=0.3", "results.kept=positions", "task.samples=1")
    opening = "Given the context, answer to the following question or request without explanation.\n\n"
    path = next(one.removeprefix("model.path=") for one in asking if one.startswith("model.path="))
    tokenizer = AutoTokenizer.from_pretrained(path)
    whole, alone = (tokenizer(text).input_ids for text in (opening + FACTS, opening))
    head = next(place for place, (one, two) in enumerate(zip(whole, alone, strict=False)) if one != two)
    assert head > 10
    kept = json.loads(next(Path("out/kept").glob("*.jsonl")).read_text().splitlines()[0])
    for layer in kept["kept"]:
        for mask in layer:
            bits = np.unpackbits(np.frombuffer(base64.b64decode(mask), np.uint8))[: kept["seen"]]
            assert bits[:head].all() and not bits.all()


def test_query_aware_rows_have_a_cut_of_their_own(kvbench: Command, asking: tuple[str, ...]) -> None:
    finished = kvbench("run", *asking, "policy=snapkv", "budget=0.3", "schedule.evict_after=prompt", "task.samples=2")
    assert finished.code == 0 and "2 rows to run from 2 prompts" in finished.err, finished.err
    assert {row.schedule for row in rows_of(Path("out"))} == {"prompt"}


def test_tables_by_question_number(kvbench: Command, asking: tuple[str, ...]) -> None:
    kvbench("run", *asking, "policy=full,snapkv", "budget=0.3")
    shown = kvbench("report", "table", "--results", "out", "--format", "markdown", "cols=question_number")
    assert shown.code == 0, shown.err
    header = next(line for line in shown.out.splitlines() if line.startswith("|"))
    numbers = [cell.partition("<br>")[0].strip() for cell in header.split("|") if "question" in cell]
    assert numbers == [f"question number {number}" for number in (1, 2, 3)], shown.out
    assert "snapkv" in shown.out and "full" in shown.out
    one = kvbench("report", "table", "--results", "out", "--format", "csv", "question_number=3")
    assert [line.split(",")[6] for line in one.out.splitlines()[1:]] == ["1", "1"]
    refused = kvbench("report", "table", "--results", "out", "cols=question_number", "against=full")
    assert refused.code == 2 and "against= compares complete cells" in refused.err
