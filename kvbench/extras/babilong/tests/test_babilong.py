"""BABILong against the modules of its authors, run on stories and books made up here (`scripts/golden_tasks.py`)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.babilong.babilong import names_only
from kvbench.extras.babilong.tests import rows as babilong_rows
from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.task import Sample
from scripts.golden_tasks import ASKED, sha256
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "prompts" / "babilong.json").read_text("utf-8"))
COPIES = "KVBENCH_BABILONG"
LABELS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    babilong_rows.write(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("member", "length", "seed", "number", "digest"), OFFICIAL["prompts"])
def test_prompts_are_those_of_its_own_code(
    member: str, length: int, seed: int, number: int, digest: str, root: Path, tokens: TokensOf
) -> None:
    task: Any = task_of(f"babilong/{member}", str(root), context_length=length, seed=seed, samples=1000)
    samples: list[Sample] = list(task.generate(tokens, range(task.samples)))
    assert len(samples) == number
    assert sha256([sample.prompt + sample.references[0] for sample in samples]) == digest
    assert list(task.generate(tokens, [3, 1])) == [samples[1], samples[3]]
    assert all(sample.question.startswith("\n</context>\n\nQuestion: Where is ") for sample in samples)
    assert all(task.score(f"It is the {sample.references[0]}.", sample) == 1.0 for sample in samples)


@pytest.mark.skipif(COPIES not in os.environ, reason=f"{COPIES} names no folder with copies of bAbI and PG19")
@pytest.mark.parametrize(("member", "length", "seed", "number", "digest"), OFFICIAL["copied"])
def test_real_files_become_the_official_prompts(
    member: str, length: int, seed: int, number: int, digest: str, tokens: TokensOf
) -> None:
    task: Any = task_of(f"babilong/{member}", os.environ[COPIES], context_length=length, seed=seed)
    samples: list[Sample] = list(task.generate(tokens, range(number)))
    assert sha256([sample.prompt + sample.references[0] for sample in samples]) == digest
    assert all(task.score(f"{sample.references[0]}.", sample) == 1.0 for sample in samples)


@pytest.mark.parametrize(("answer", "right"), OFFICIAL["answers"])
def test_an_answer_is_right_where_compare_answers_says_so(answer: str, right: bool) -> None:
    assert names_only("garden", answer, ASKED, LABELS) == right


def test_what_cannot_be_is_refused(root: Path, tokens: TokensOf) -> None:
    with pytest.raises(ValueError, match=r"task\.context_length=300 of babilong/qa1: 300 tokens are left"):
        task_of("babilong/qa1", str(root), context_length=300)
    for book in (root / "pg19").iterdir():
        book.write_text("Short. Too short. All are. So it is.")
    with pytest.raises(ValueError, match=r"pg19/\*\.txt: 1000 places in the books had no whole sentence of 10 tokens"):
        list(task_of("babilong/qa1", str(root)).generate(tokens, [0]))
    (file,) = (root / "babilong" / "en-10k").glob("qa1*")
    file.write_text("no number")
    with pytest.raises(ValueError, match=r"train\.txt is no file of bAbI: invalid literal"):
        list(task_of("babilong/qa1", str(root)).generate(tokens, [0]))
