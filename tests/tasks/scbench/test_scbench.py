"""SCBench: contexts with their questions, and rows that are none."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.tasks.task import InvalidSample, Turn
from tests.tasks.infinitebench.conftest import Words
from tests.tasks.scbench.rows import ADD, SUB, make, row, write


def test_functions_of_one_name_are_all_right(tmp_path: Path) -> None:
    write(tmp_path, "scbench/repoqa", row("repoqa", func_name=["add", "add"]))
    first, _ = make(tmp_path, "scbench/repoqa").generate(Words(), range(2))
    assert first.references == (ADD, SUB)


def test_contexts_of_unlike_numbers_of_questions(tmp_path: Path) -> None:
    many = row("kv", prompts=["c", "1", "2", "3"], ground_truth=["x", "y", "z"])
    single = row("kv", prompts=["d", "4"], ground_truth=["w"])
    write(tmp_path, "scbench/kv", many, single, many)
    task = make(tmp_path, "scbench/kv")
    assert task.samples == 7 and [task.context_of(i) for i in range(7)] == [0, 0, 0, 1, 2, 2, 2]
    assert make(tmp_path, "scbench/kv", contexts=2).samples == 4
    (last,) = task.generate(Words(), [6])
    assert (last.question_number, last.references) == (3, ("z",))
    opening = "Given the context, answer to the following question or request without explanation.\n\n"
    assert (last.context, last.context_prefix) == (f"{opening}c", opening)
    with pytest.raises(ValueError, match="scbench/kv has 7 questions, none is 7"):
        task.context_of(7)


def test_shortened_contexts_are_files_of_their_own(tmp_path: Path) -> None:
    assert make(tmp_path, "scbench/kv", length="tiny").files == ("scbench/kv_tiny.jsonl",)
    with pytest.raises(ValueError, match=r"task\.length=tiny of scbench/vt: allowed: full"):
        make(tmp_path, "scbench/vt", length="tiny")


@pytest.mark.parametrize(
    ("member", "fields", "message"),
    [
        ("kv", {"prompts": "text"}, "its prompts are text"),
        ("kv", {"prompts": ["only a context"]}, "at least one question"),
        ("kv", {"prompts": [" ", "a", "b"]}, "its context is empty"),
        ("kv", {"ground_truth": ["x"]}, "one for each of 2 questions"),
        ("kv", {"ground_truth": ["x", None]}, "its ground_truth holds 'None'"),
        ("many_shot", {"ground_truth": ["A", "Z"]}, r"has no option \(Z\)"),
        ("repoqa", {"lang": "cobol"}, "its lang is 'cobol'"),
        ("repoqa", {"func_name": ["add"]}, "with a name for question 2"),
        ("repoqa_and_kv", {"task": ["scbench_kv", "scbench_vt"]}, "its task holds 'scbench_vt'"),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path: Path, member: str, fields: dict[str, Any], message: str) -> None:
    """All of its questions count; those of the next row are asked."""
    write(tmp_path, f"scbench/{member}", row(member, **fields), row(member))
    task = make(tmp_path, f"scbench/{member}")
    *spoilt, third, fourth = task.generate(Words(), range(task.samples))
    assert all(isinstance(sample, InvalidSample) and re.search(message, sample.error) for sample in spoilt)
    assert all(sample.error.startswith(f"scbench/{member}.jsonl:1: ") for sample in spoilt)
    assert len(spoilt) == (1 if "prompts" in fields and len(fields["prompts"]) != 3 else 2)
    assert [third.question_number, fourth.question_number] == [1, 2]


def test_what_no_task_can_be_is_refused(tmp_path: Path) -> None:
    for fields, message in (
        ({"member": "passkey"}, "allowed: kv"),
        ({"contexts": 0}, r"task\.contexts=0"),
        ({"ask": "Q"}, "names {question} once"),
        ({"turns": "mine"}, r"task\.turns=mine: allowed: 'none', 'gold' or 'own'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(tmp_path, "scbench/kv", **fields)
    with pytest.raises(FileNotFoundError, match="kvbench data pull scbench"):
        list(make(tmp_path, "scbench/kv").generate(Words(), [0]))


def test_turns_follow_the_right_answers_before_them(tmp_path: Path) -> None:
    rows = row("kv", prompts=["c", "1", "2", "3"], ground_truth=["x", "y", "z"]), row("kv")
    write(tmp_path, "scbench/kv", *rows)
    turns, alone = make(tmp_path, "scbench/kv", turns="gold"), make(tmp_path, "scbench/kv")
    samples = list(turns.generate(Words(), range(5)))
    first, second = Turn("\n\nQ: 1", "\nx", 96), Turn("\n\nQ: 2", "\ny", 96)
    assert [sample.earlier for sample in samples[:4]] == [(), (first,), (first, second), ()]
    assert [sample.question_number for sample in samples] == [1, 2, 3, 1, 2]
    assert samples[2].prompt == samples[2].context + "\n\nQ: 1\nx\n\nQ: 2\ny\n\nQ: 3"
    own = list(make(tmp_path, "scbench/kv", turns="own").generate(Words(), range(5)))
    assert own[2].earlier == (replace(first, answer=None), replace(second, answer=None)) and own[2].own_tokens == 288
    for sample, apart in zip(samples, alone.generate(Words(), range(5)), strict=True):
        assert (sample.context, sample.question, sample.references) == (apart.context, apart.question, apart.references)


def test_a_turn_after_an_invalid_one_is_invalid(tmp_path: Path) -> None:
    broken = row(
        "many_shot", prompts=["c", "Which?\n(A) blue\n", "none", "Which?\n(B) red\n"], ground_truth=["A", "B", "B"]
    )
    write(tmp_path, "scbench/many_shot", broken)
    kinds = [type(sample) for sample in make(tmp_path, "scbench/many_shot", turns="gold").generate(Words(), range(3))]
    assert kinds.count(InvalidSample) == 3  # the row as a whole is refused
