"""SQuAD's paragraphs with all their questions, and GSM8K's problems cut before their question."""

from pathlib import Path

import pytest

from kvbench.tasks.kvzip import split
from kvbench.tasks.task import InvalidSample
from tests.tasks.infinitebench.conftest import Words
from tests.tasks.scbench.rows import make, write

PROBLEM = "A baker fills 12 trays. Each holds 6 rolls. How many rolls is that?"


def paragraph(context: str, question: str, *answers: str) -> dict[str, object]:
    return {"id": "0", "context": context, "question": question, "answers": {"text": list(answers)}}


def test_rows_of_a_paragraph_are_one_context(tmp_path: Path) -> None:
    rows = [paragraph("One.", "a?", "The Sky", "sun"), paragraph("Two.", "b?", "x"), paragraph("One.", "c?", "y")]
    write(tmp_path, "squad/train", *rows)
    task = make(tmp_path, "squad")
    samples = list(task.generate(Words(), range(3)))
    assert task.samples == 3 and [task.context_of(i) for i in range(3)] == [0, 0, 1]
    assert [sample.question for sample in samples] == ["\n\nQ: a?", "\n\nQ: c?", "\n\nQ: b?"]
    assert [sample.question_number for sample in samples] == [1, 2, 1]
    assert task.score("blue sky", samples[0]) == 1.0 and task.score("sun", samples[0]) == 0.0
    assert make(tmp_path, "squad", contexts=1, cut_last=False).samples == 2


def test_the_paragraph_too_many_is_asked_its_first_question(tmp_path: Path) -> None:
    """KVzip asks for n paragraphs and stops at the row that brings one more."""
    rows = [paragraph(f"P{number}.", f"{letter}?", "x") for number in range(103) for letter in "ab"]
    write(tmp_path, "squad/train", *rows)
    task = make(tmp_path, "squad", samples=999)
    assert task.samples == 201 and task.context_of(200) == 100
    (last,) = task.generate(Words(), [200])
    assert (last.context[-5:], last.question) == ("P100.", "\n\nQ: a?")
    assert make(tmp_path, "squad", samples=999, contexts=None).samples == 206


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (paragraph(" ", "a?", "x"), "squad/train.jsonl:2: its context is empty"),
        (paragraph("One.", "a?"), "squad/train.jsonl:2: its answers are"),
        ({"context": "One.", "answers": {"text": ["x"]}}, "squad/train.jsonl:2: it has no question"),
    ],
)
def test_a_row_that_is_none_of_squad_is_named(tmp_path: Path, row: dict, message: str) -> None:
    write(tmp_path, "squad/train", paragraph("One.", "b?", "y"), row)
    good, spoilt = sorted(make(tmp_path, "squad").generate(Words(), [0, 1]), key=lambda sample: sample.id)
    assert isinstance(spoilt, InvalidSample) and spoilt.error.startswith(message) and good.references == ("y",)


def test_the_last_sentence_is_the_question() -> None:
    assert split(PROBLEM) == ("A baker fills 12 trays. Each holds 6 rolls.", "How many rolls is that?")
    assert split("How many?") == (".", "How many?")


def test_short_problems_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k/test", *[{"question": text, "answer": "#### 72"} for text in ("A. B?", PROBLEM, PROBLEM)])
    task = make(tmp_path, "gsm8k", least_tokens=8)
    samples = list(task.generate(Words(), [0, 1]))
    assert [sample.id for sample in samples] == [0, 1] and list(task.generate(Words(), [1])) == samples[1:]
    assert samples[0].context.endswith("question.\n\nA baker fills 12 trays. Each holds 6 rolls.")
    assert samples[0].question.endswith("'The answer is'. Q: How many rolls is that?")
    assert task.score("It is 12 * 6. The answer is 72.", samples[0]) == 1.0
    write(tmp_path, "gsm8k/test", {"question": PROBLEM}, {"question": PROBLEM, "answer": "#### 72"})
    spoilt, good = make(tmp_path, "gsm8k", least_tokens=8).generate(Words(), [0, 1])
    assert isinstance(spoilt, InvalidSample) and "gsm8k/test.jsonl:1: it has no answer" in spoilt.error and good.id == 1
    with pytest.raises(ValueError, match=r"task\.samples=3: 2 problems of gsm8k/test\.jsonl have a context of"):
        list(task.generate(Words(), [2]))
