"""Several questions on one evicted cache, from the command line: one prefill, one cut, a row each."""

import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from kvbench.cli.main import main
from kvbench.run import conversations
from tests.cli.conftest import Command, exact, rows_of
from tests.forked import Forked
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
        by_context = {
            row.context_sha256: {other.kept_sha256 for other in own if other.context_sha256 == row.context_sha256}
            for row in own
        }
        assert len(by_context) == 2 and all(len(kept) == 1 for kept in by_context.values())
    assert all(row.schedule == "context" and row.metric == "kvzip_inclusion" for row in rows)
    kvbench("run", *asking, "policy=snapkv", "budget=0.3", "task.samples=1", "results.dir=parts")
    resumed = kvbench("run", *asking, "policy=snapkv", "budget=0.3", "results.dir=parts")
    assert resumed.code == 0 and "4 rows to run from 2 prompts" in resumed.err, resumed.err
    whole = {row.sample: row.outcome() for row in rows if row.policy == "snapkv"}
    assert whole == {row.sample: row.outcome() for row in rows_of(Path("parts"))}, "the cut is made anew"


def test_the_instruction_is_in_the_head_that_kvzip_keeps(kvbench: Command, asking: tuple[str, ...]) -> None:
    kvbench("run", *asking, "policy=kvzip", "budget=0.3", "results.kept=positions", "task.samples=1")
    opening = "Given the context, answer to the following question or request without explanation.\n\n"
    path = next(setting.removeprefix("model.path=") for setting in asking if setting.startswith("model.path="))
    tokenizer = AutoTokenizer.from_pretrained(path)
    whole, alone = (tokenizer(text).input_ids for text in (opening + FACTS, opening))
    head = next(place for place, (token, other) in enumerate(zip(whole, alone, strict=False)) if token != other)
    assert head > 10
    kept = json.loads(next(Path("out/kept").glob("*.jsonl")).read_text().splitlines()[0])
    for layer in kept["kept"]:
        for mask in layer:
            bits = np.unpackbits(np.frombuffer(base64.b64decode(mask), np.uint8))[: kept["seen"]]
            assert bits[:head].all() and not bits.all()


def test_tables_by_question_number(kvbench: Command, asking: tuple[str, ...]) -> None:
    kvbench("run", *asking, "policy=full,snapkv", "budget=0.3")
    shown = kvbench("report", "table", "--results", "out", "--format", "markdown", "cols=question_number")
    assert shown.code == 0, shown.err
    header = next(line for line in shown.out.splitlines() if line.startswith("|"))
    numbers = [cell.partition("<br>")[0].strip() for cell in header.split("|") if "question" in cell]
    assert numbers == [f"question number {number}" for number in (1, 2, 3)], shown.out
    assert "snapkv" in shown.out and "full" in shown.out
    third = kvbench("report", "table", "--results", "out", "--format", "csv", "question_number=3")
    assert [line.split(",")[6] for line in third.out.splitlines()[1:]] == ["1", "1"]
    drawn = kvbench("report", "plot", "tradeoff", "--results", "out", "x=question", "--out", "turns.png")
    assert drawn.code == 0 and Path("turns.png").stat().st_size > 1000, drawn.err
    refused = kvbench("report", "table", "--results", "out", "cols=question_number", "against=full")
    assert refused.code == 2 and "against= compares complete cells" in refused.err


def test_right_and_own_answers_are_cells_of_their_own(kvbench: Command, asking: tuple[str, ...]) -> None:
    """They share no row; the first turn of both is the same."""
    settings = ("policy=full,snapkv", "budget=0.3", "schedule.decode_every=8", "task.max_new_tokens=6")
    for turns in ("gold", "own"):
        finished = kvbench("run", *asking, *settings, f"task.turns={turns}")
        assert finished.code == 0 and "10 rows to run from 2 prompts" in finished.err, finished.err
    rows = rows_of(Path("out"))
    assert len({row.cell for row in rows}) == 4 and len(rows) == 20 and all(row.error is None for row in rows)
    modes = {cell.stem: json.loads(cell.read_text())["task"]["turns"] for cell in Path("out/cells").glob("*.json")}
    firsts = {(modes[row.cell], row.policy, row.sample): row.output_sha256 for row in rows if row.question_number == 1}
    assert all(output == firsts["gold", policy, sample] for (_, policy, sample), output in firsts.items())


def test_a_kill_in_the_middle_of_a_conversation_costs_no_row(
    kvbench: Command, asking: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL in the second turn of the second context; the same command then makes the same rows."""
    run = ("run", *asking, "policy=full,snapkv", "budget=0.3", "task.turns=own", "task.max_new_tokens=6")
    kvbench(*run)
    real: Any = conversations.converse
    left = [1]

    def doomed(*arguments: Any) -> Any:
        *before, choose, max_length = arguments

        def chosen(logits: Any, places: Any) -> Any:
            if left[0] < 0 and places[0] == (1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            return choose(logits, places)

        left[0] -= 1
        return real(*before, chosen, max_length)

    with monkeypatch.context() as patch:
        patch.setattr(conversations, "converse", doomed)
        (output_folder := tmp_path / "said").mkdir()
        child = Forked(lambda: main(exact((*run, "results.dir=killed"))), tmp_path, output_folder)
        assert child.wait() == -signal.SIGKILL
    kept = rows_of(Path("killed"))
    assert {row.question_number for row in kept} == {1, 2} and len(kept) == 4
    assert kvbench(*run, "results.dir=killed").code == 0
    rows = {(row.cell, row.sample): row.outcome() for row in rows_of(Path("killed"))}
    assert rows == {(row.cell, row.sample): row.outcome() for row in rows_of(Path("out"))} and len(rows) == 10
