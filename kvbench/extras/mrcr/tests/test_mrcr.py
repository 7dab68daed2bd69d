"""MRCR: conversations, and the grade of its data card."""

from pathlib import Path
from typing import Any, cast

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.mrcr.mrcr import MRCR, grade
from kvbench.tasks.task import InvalidSample, Sample, TokenCounter
from tests.tasks.scbench.rows import write
from tests.tasks.versions import mrcr_row


def task(root: Path, *rows: Any, **fields: Any) -> MRCR:
    write(root, "mrcr/2needle_0", *rows[:2])
    write(root, "mrcr/2needle_1", *rows[2:])
    mrcr_task = task_of("mrcr_2", str(root), **fields)
    assert isinstance(mrcr_task, MRCR)
    return mrcr_task


def samples(task: MRCR, *indices: int) -> list[Sample | InvalidSample]:
    return list(task.generate(cast(TokenCounter, len), indices or range(task.samples)))


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("x1abcd", 1.0),
        ("x1abxd", 0.75),  # three of four characters match: 2 * 3 / (4 + 4)
        ("x1ab", 2 * 2 / (2 + 4)),
        ("x1", 0.0),
        ("abcd", 0.0),
        (" x1abcd", 0.0),
        ("x1x1abcd", 2 * 4 / (6 + 4)),
    ],
)
def test_the_grade_is_the_ratio_after_the_random_string(response: str, expected: float) -> None:
    assert grade(response, "x1abcd", "x1") == pytest.approx(expected, abs=1e-12)


def test_a_conversation_is_the_context_and_its_last_message_the_question(tmp_path: Path) -> None:
    mrcr_task = task(tmp_path, *map(mrcr_row, range(3)), samples=9)
    assert mrcr_task.samples == 3 and mrcr_task.files == ("mrcr/2needle_0.jsonl", "mrcr/2needle_1.jsonl")
    for number, sample in enumerate(samples(mrcr_task)):
        assert isinstance(sample, Sample) and sample.id == number
        assert sample.messages == (
            *(("user", "write a poem"), ("assistant", "Rose.")),
            *(("user", "write a poem"), ("assistant", f"Tulip {number}.")),
        )
        assert sample.question == "Prepend x1 to the second (1 indexed) poem."
        assert sample.context.endswith(f"Tulip {number}.\n\n")
        assert mrcr_task.score(f"x1Tulip {number}.", sample) == 1.0 and mrcr_task.score("Tulip", sample) == 0.0
    assert [sample.id for sample in samples(mrcr_task, 0, 2)] == [0, 2]


def test_long_conversations_can_be_left_out(tmp_path: Path) -> None:
    rows = [mrcr_row(number, chars) for number, chars in enumerate((50, 500, 60, 70))]
    mrcr_task = task(tmp_path, *rows, max_chars=65)
    assert mrcr_task.samples == 2
    assert [sample.references for sample in samples(mrcr_task) if isinstance(sample, Sample)] == [
        ("x1Tulip 0.",),
        ("x1Tulip 2.",),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": "[]"}, r"its messages are \[\]: a list of at least one object"),
        ({"prompt": "no list"}, "Expecting value"),
        ({"prompt": '[{"role": "robot", "content": "a"}]'}, "a message has the role 'robot'"),
        ({"answer": " "}, "its answer is empty"),
        ({"random_string_to_prepend": 3}, "its random_string_to_prepend is a number, not a text"),
    ],
)
def test_an_invalid_row_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    (sample,) = samples(task(tmp_path, mrcr_row(0) | change, samples=1))
    assert isinstance(sample, InvalidSample) and sample.error.startswith("mrcr/2needle_0.jsonl:1: ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(sample.error)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mrcr_2 has 1 samples, none is 5"):
        samples(task(tmp_path, mrcr_row(0)), 5)
    with pytest.raises(ValueError, match=r"task\.needles=3"):
        task_of("mrcr_2", str(tmp_path), needles=3)
