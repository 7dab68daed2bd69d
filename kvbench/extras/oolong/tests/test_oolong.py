"""OOLONG: rows, and the scores of its own eval_helpers.py (`scripts/golden_tasks.py`)."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.oolong.oolong import gold, synth_score
from kvbench.tasks.task import InvalidSample, Sample, TokenCounter
from tests.tasks.scbench.rows import write
from tests.tasks.versions import GOLDEN, oolong_row

OFFICIAL = json.loads((GOLDEN / "prompts" / "oolong.json").read_text("utf-8"))


def samples(root: Path, *rows: Any, **fields: Any) -> list[Sample | InvalidSample]:
    write(root, "oolong/synth_test", *rows)
    task: Any = task_of("oolong", str(root), **fields)
    return list(task.generate(cast(TokenCounter, len), range(task.samples)))


@pytest.mark.parametrize(("right", "kind", "answer", "score"), OFFICIAL["scores"])
def test_an_answer_has_the_score_of_the_evaluation(right: str, kind: str, answer: str, score: float) -> None:
    assert synth_score(answer, gold(right), kind) == pytest.approx(score, abs=1e-12)


def test_answers_without_a_word_score_nothing() -> None:
    assert synth_score("", "7", "ANSWER_TYPE.NUMERIC") == synth_score(" " * 30, "7", "ANSWER_TYPE.NUMERIC") == 0.0


def test_a_row_is_a_context_and_a_question(tmp_path: Path) -> None:
    rows = [oolong_row("[3]"), oolong_row("[4]", 5000), oolong_row("['a']")]
    first, last = samples(tmp_path, *rows, max_context_len=4000)
    assert isinstance(first, Sample) and isinstance(last, Sample)
    assert first.prompt == "One.\nTwo.\nThree.\n\nHow many, or when?" and last.references == ("a",)
    assert (first.references, first.choices) == (("3",), ("ANSWER_TYPE.NUMERIC",))


@pytest.mark.parametrize("answer", ["", "7", "[]", "[open('x')]"])
def test_an_answer_that_is_no_list_is_named(answer: str, tmp_path: Path) -> None:
    (sample,) = samples(tmp_path, oolong_row("[3]") | {"answer": answer})
    assert isinstance(sample, InvalidSample)
    assert sample.error == f"oolong/synth_test.jsonl:1: its answer is {answer!r}: a list of one value"
