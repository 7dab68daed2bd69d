"""NoLiMa against its own book_haystack.py and the loop of its async_evaluate.py, run on books made up here.

tests/golden/prompts/nolima.json: for two lengths the number of prompts of all books, tests and depths, and a hash over
their hashes and answers.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.nolima.nolima import NoLiMa
from kvbench.extras.nolima.tests import rows as nolima
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.task import Sample
from tests.models.tokenizers import of_bytes
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "prompts" / "nolima.json").read_text("utf-8"))


def task(root: Path, **fields: Any) -> NoLiMa:
    nolima_task = task_of("nolima", str(root), **fields)
    assert isinstance(nolima_task, NoLiMa)
    return nolima_task


def samples(task: NoLiMa, tokens: TokensOf) -> list[Sample]:
    return [sample for sample in task.generate(tokens, range(task.samples)) if isinstance(sample, Sample)]


@pytest.mark.parametrize("length", [60, 200])
def test_prompts_and_answers_are_those_of_its_own_code(length: int, root: Path, tokens: TokensOf) -> None:
    generated_samples = samples(task(root, context_length=length, samples=10_000), tokens)
    lines = {
        f"{hashlib.sha256(sample.prompt.encode()).hexdigest()} {json.dumps(list(sample.references))}"
        for sample in generated_samples
    }
    assert len(generated_samples) == len(lines) == OFFICIAL[str(length)]["prompts"]
    assert hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest() == OFFICIAL[str(length)]["sha256"]


def test_a_book_is_encoded_without_special_tokens(root: Path) -> None:
    """`add_special_tokens=False` of async_api_connector.py: a tokenizer that begins texts moves no depth."""
    first, second = (
        samples(task(root, context_length=60, samples=30), TokensOf(of_bytes(begin=begin))) for begin in (False, True)
    )
    assert first == second


def test_the_first_samples_differ_in_test_and_depth(root: Path, tokens: TokensOf) -> None:
    first = samples(task(root, context_length=60, samples=5), tokens)
    assert [sample.kind for sample in first] == ["onehop", "onehop", "twohop", "twohop", "onehop"]
    assert all(sample.context.startswith(("You will answer", "Read:")) for sample in first)
    assert first[4].question == "\nNow: Who cannot eat salmon?" and first[4].references == ("Dan", "dan")
    (hop,) = (sample.question for sample in samples(task(root, context_length=60, samples=1, kind="twohop"), tokens))
    assert "Question: Who has been near Italy?" in hop


def test_a_right_name_anywhere_in_the_answer_counts(root: Path, tokens: TokensOf) -> None:
    nolima_task = task(root, context_length=60, samples=5)
    sample = samples(nolima_task, tokens)[4]
    assert [nolima_task.score(text, sample) for text in ("It is Dan.", "dan", "DAN", "")] == [1.0, 1.0, 0.0, 0.0]


def test_what_cannot_be_is_refused(root: Path, tokens: TokensOf, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task\.kind=threehop of nolima: choose one of onehop, twohop, or null"):
        task(root, kind="threehop")
    with pytest.raises(ValueError, match=r"task\.depths=14 of nolima: no multiple of 7"):
        task(root, depths=14)
    with pytest.raises(ValueError, match=r"task\.context_length=90000: a book of \d+ tokens is too short"):
        samples(task(root, context_length=90_000, samples=1), tokens)
    nolima.write(tmp_path)
    (tmp_path / "nolima" / "needle_set.json").write_text('[{"id": "1"}]')
    with pytest.raises(
        ValueError, match=r"needle_set\.json is no needle set of NoLiMa: UserError: it has no questions"
    ):
        task(tmp_path)
