"""Answers that reason: what rows say of them, and what of them is scored, in every way of answering."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvbench.eviction.schedule import Schedule
from kvbench.models.loading.load import LoadedModel
from kvbench.models.prompts import reasoning
from kvbench.models.prompts.reasoning import Tags
from kvbench.records import Row
from kvbench.run.cell import Cell
from kvbench.run.joint_batch import JointBatch
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from kvbench.tasks.task import Reasoning
from tests.questions import Questions
from tests.run.test_prefill_job import cells, samples_of

TASK = Questions(max_new_tokens=12)
Load = Callable[..., LoadedModel]
NEVER = "<never>"


def alone(model: LoadedModel, cell: Cell) -> Row:
    (row,) = run_prefill_job(model, PrefillJob({0: (cell,)}), samples_of(0, task=TASK), "here").rows
    return row


def jointly(model: LoadedModel, cell: Cell) -> Row:
    joint = JointBatch(model, "here")
    assert joint.add(PrefillJob({0: (cell,)}), *samples_of(0, task=TASK))
    (result,) = joint.finish().values()
    return result.rows[0]


def cell_of(schedule: Schedule, setting: Reasoning = "strip") -> Cell:
    return replace(cells("0.3", task=replace(TASK, reasoning=setting))[1], schedule=schedule)


@pytest.mark.parametrize(
    ("answered", "schedule"),
    [
        (alone, Schedule("prompt")),
        (alone, Schedule("context")),
        (alone, Schedule("prompt", None, 4)),
        (jointly, Schedule("prompt")),
        (jointly, Schedule("context")),
    ],
)
def test_a_row_keeps_the_whole_answer_and_scores_its_final_part(
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    answered: Callable[..., Row],
    schedule: Schedule,
) -> None:
    """A token of an answer is taken for the mark that ends the reasoning, and then for the one that begins it."""
    model = load()
    whole = answered(model, cell_of(schedule, "keep"))
    assert (whole.ended, whole.reasoning, whole.reasoning_tokens) == ("limit", None, None) and whole.prediction
    words = whole.prediction.split()
    word = next(word for at, word in enumerate(words) if at > 1 and words.count(word) == 1)
    mark = f" {word}" if len(model.tokenizer.tokenize(f" {word}")) == 1 else word
    before, _, after = whole.prediction.partition(mark)
    monkeypatch.setattr(reasoning, "ANY", Tags((NEVER,), (mark,)))
    row = answered(model, cell_of(schedule))
    assert (row.prediction, row.output_sha256, row.new_tokens) == (whole.prediction, whole.output_sha256, 12)
    assert row.reasoning == "whole" and row.reasoning_tokens == len(model.tokenizer(before).input_ids)
    assert row.value == len(after.lstrip()) / 100
    monkeypatch.setattr(reasoning, "ANY", Tags((mark,), (NEVER,)))
    row = answered(model, cell_of(schedule))
    assert (row.prediction, row.reasoning, row.value, row.error) == (whole.prediction, "cut", 0.0, None)


def test_a_row_says_why_its_answer_ended(load: Load, tokenizer: Any) -> None:
    whole = alone(load(), cell_of(Schedule("prompt")))
    assert whole.prediction is not None and whole.ended == "limit"
    first, *_ = tokenizer(whole.prediction, add_special_tokens=False).input_ids
    ended = alone(load(stop=[first]), cell_of(Schedule("prompt")))
    assert (ended.ended, ended.new_tokens, ended.prediction) == ("end", 1, "")
    task = replace(TASK, stop=(tokenizer.decode([first]),))
    stopped = alone(load(), replace(cell_of(Schedule("prompt")), task=task))
    assert (stopped.ended, stopped.new_tokens, stopped.prediction) == ("stop", 1, "")
