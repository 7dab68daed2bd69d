"""RULER v2 against the generator and the evaluator of its authors (`scripts/golden_tasks.py`)."""

import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.models.prompts.prompt import TokensOf
from kvbench.tasks.task import Sample
from scripts.golden_tasks import sha256
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "prompts" / "ruler_v2.json").read_text("utf-8"))
NAMES = {1: "ruler_v2/mk_niah_basic", 4: "ruler_v2/mv_niah_basic"}


@pytest.fixture(scope="module")
def tokens() -> TokensOf:
    return TokensOf(AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer"))


@pytest.mark.parametrize(("values", "length", "seed", "number", "digest"), OFFICIAL["prompts"])
def test_prompts_are_those_of_the_official_generator(
    values: int, length: int, seed: int, number: int, digest: str, tokens: TokensOf
) -> None:
    task: Any = task_of(NAMES[values], None, context_length=length, seed=seed)
    samples: list[Sample] = list(task.generate(tokens, range(number)))
    assert sha256([sample.prompt + "".join(sample.references) for sample in samples]) == digest
    assert list(task.generate(tokens, [2, 1])) == samples[1:3]
    assert all(tokens(sample.prompt) <= length for sample in samples)
    assert all(sample.context.endswith(".") and sample.question.startswith("\nWhat ") for sample in samples)
    assert all(len(sample.references) == values for sample in samples)


@pytest.mark.parametrize(("right", "answer", "score"), OFFICIAL["scores"])
def test_an_answer_has_the_score_of_the_official_evaluator(right: list[str], answer: str, score: float) -> None:
    task: Any = task_of(NAMES[4], None)
    assert task.score(answer, Sample(0, task.name, "", "", "", tuple(right), 9)) == score


def test_what_cannot_be_is_refused(tokens: TokensOf) -> None:
    with pytest.raises(ValueError, match=r"task\.context_length=50 cannot hold ruler_v2/mk_niah_basic: .* 5 lines"):
        list(task_of(NAMES[1], None, context_length=50).generate(tokens, [0]))
    with pytest.raises(ValueError, match=r"task\.num_values=6 of ruler_v2/mv_niah_basic: at most 5 needles fit"):
        task_of(NAMES[4], None, context_length=1024, num_values=6)
    with pytest.raises(ValueError, match="sample indices start at 0, got -1"):
        list(task_of(NAMES[1], None).generate(tokens, [-1]))
