"""HELMET against its own data.py, model_utils.py and utils.py, run on rows made up here.

tests/golden/prompts/helmet.json: for each task and sample the hash of the prompt with and without a chat template, its
tokens, and the hash of the prompt that `tokenize` shortens by eleven tokens; the scores of `answers`, {0} being the
first reference. few_examples: prompts of re-ranking with few examples.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.helmet.helmet import Helmet
from kvbench.extras.helmet.tests import rows as helmet_rows
from kvbench.models.prompts.tokens import TokensOf
from kvbench.support.errors import MissingFile
from kvbench.tasks.task import InvalidSample, Sample
from tests.tasks.versions import GOLDEN

OFFICIAL = json.loads((GOLDEN / "prompts" / "helmet.json").read_text("utf-8"))
TASKS = OFFICIAL["tasks"]


def task(name: str, root: Path, **fields: Any) -> Helmet:
    helmet_task = task_of(f"helmet/{name}", str(root), **{"samples": 100} | fields)
    assert isinstance(helmet_task, Helmet)
    return helmet_task


def samples(task: Helmet, tokens: TokensOf) -> list[Sample]:
    return [sample for sample in task.generate(tokens, range(task.samples)) if isinstance(sample, Sample)]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("name", TASKS)
def test_prompts_and_scores_are_those_of_its_own_code(name: str, root: Path, tokens: TokensOf) -> None:
    official = TASKS[name]
    raw = task(name, root, questions=official["questions"])
    first, second = samples(raw, tokens), samples(replace(raw, chat=True), tokens)
    actual = [
        (sha256(sample.prompt), sha256(wrapped.prompt), [raw.score(text(answer, sample), sample) for answer in answers])
        for answers in [OFFICIAL["answers"][official["kind"]]]
        for sample, wrapped in zip(first, second, strict=True)
    ]
    expected = [(*prompt[:2], scores) for prompt, scores in zip(official["prompts"], official["scores"], strict=True)]
    if official["kind"] in ("json_kv", "niah"):  # officially in the order of the shuffle
        actual, expected = sorted(actual), sorted(expected)
    assert [entry[:2] for entry in actual] == [entry[:2] for entry in expected]
    for entry, wanted in zip(actual, expected, strict=True):
        assert entry[2] == pytest.approx(wanted[2], abs=1e-9)


def text(answer: str, sample: Sample) -> str:
    return answer.replace("{0}", sample.references[0])


@dataclass(frozen=True)
class Longer(TokensOf):
    """A tokenizer beside a text so long that a prompt of `size` tokens exceeds the limit by eleven."""

    size: int = 0

    def encode(self, text: str, special: bool) -> list[int]:
        ids = super().encode(text, special)
        return ids + [0] * (8192 + 11 - self.size)


@pytest.mark.parametrize("name", TASKS)
def test_a_prompt_that_is_too_long_loses_the_end_of_its_context(name: str, root: Path, tokens: TokensOf) -> None:
    raw = task(name, root, questions=TASKS[name]["questions"])
    by_hash = {prompt[0]: prompt for prompt in TASKS[name]["prompts"]}
    for index, sample in list(enumerate(samples(raw, tokens)))[:4]:
        _, _, size, shortened = by_hash[sha256(sample.prompt)]
        (short,) = raw.generate(Longer(tokens.tokenizer, size=size + raw.max_new_tokens), [index])
        assert isinstance(short, Sample) and sha256(short.prompt) == shortened
        assert short.question == sample.question and sample.context.startswith(short.context)


@pytest.mark.parametrize("name", ["kilt/nq-dev-multikilt_1000_k50_dep6", "msmarco/test_reranking_data_k50_dep3"])
def test_an_invalid_row_is_named(name: str, tmp_path: Path, tokens: TokensOf) -> None:
    helmet_rows.write(tmp_path)
    file = tmp_path / "helmet" / f"{name}.jsonl"
    lines = file.read_text("utf-8").splitlines()
    file.write_text("\n".join(['{"question": "a"}', lines[1].replace('"text"', '"words"'), *lines[2:]]), "utf-8")
    helmet_task = task("nq" if "kilt" in name else "msmarco", tmp_path, questions=None)
    errors = [sample.error for sample in helmet_task.generate(tokens, range(8)) if isinstance(sample, InvalidSample)]
    assert errors[0].startswith(f"helmet/{name}.jsonl:1: it has no ") and len(errors) == 2
    assert f"{name}.jsonl:2: its ctxs are" in errors[1] and "a list of passages with" in errors[1]


def test_what_cannot_be_is_refused(root: Path, tmp_path: Path, tokens: TokensOf) -> None:
    with pytest.raises(
        ValueError, match=r"task\.dataset=narrativeqa: allowed: 'nq', 'triviaqa', 'hotpotqa' or 'popqa'"
    ):
        task("nq", root, dataset="narrativeqa")
    with pytest.raises(ValueError, match=r"task\.context_length=4096: allowed: 8192, 16384, 32768, 65536 or 131072"):
        task("nq", root, context_length=4096)
    (invalid,) = task("nq", root, shots=90).generate(tokens, [0])
    assert isinstance(invalid, InvalidSample) and "has 6 examples for it" in invalid.error
    with pytest.raises(MissingFile, match=r"test_k220_dep6\.jsonl .*kvbench data pull helmet"):
        samples(task("json_kv", root, context_length=16384), tokens)
    helmet_rows.write(tmp_path)
    (tmp_path / "helmet_nlu" / "train.jsonl").write_text('{"text": "a", "label": 68}\n')
    with pytest.raises(ValueError, match=r"helmet_nlu/train\.jsonl: label of a row is 68: a whole number below 68"):
        task("nlu", tmp_path)


def test_few_examples_of_ranking_lack_the_own_query_alone(tmp_path: Path, tokens: TokensOf) -> None:
    """With at most twice as many examples as rows those of other queries stay. These passages have no title."""
    helmet_rows.write(tmp_path)
    for count, rows in ((50, 8), (10, 12)):
        file = tmp_path / "helmet" / "msmarco" / f"test_reranking_data_k{count}_dep3.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in helmet_rows.msmarco(count, rows, titled=False)))
    generated_samples = samples(task("msmarco", tmp_path, questions=None), tokens)
    assert [sha256(sample.prompt) for sample in generated_samples] == OFFICIAL["few_examples"]
