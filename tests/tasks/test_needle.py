"""The needle heat-map: contexts byte for byte, where the needle stands, special tokens, what is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.needle import NEEDLE, Needle
from kvbench.tasks.task import Sample, Task

GOLDEN = Path(__file__).parents[1] / "golden"
CONTEXTS = json.loads((GOLDEN / "metrics" / "needle.json").read_text(encoding="utf-8"))["contexts"]
SENTENCES = " ".join(f"Sentence {number} says little, and 3.5 of it twice." for number in range(400))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer")


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "paul_graham_essays").mkdir()
    (tmp_path / "paul_graham_essays" / "b.txt").write_text(SENTENCES[5000:], encoding="utf-8")
    (tmp_path / "paul_graham_essays" / "a.txt").write_text(SENTENCES[:5000], encoding="utf-8")
    return str(tmp_path)


def make(root: str, style: str = "official", **fields: Any) -> Needle:
    return Needle(**({"name": "needle/x", "style": style, "scorer": "words", "root": root} | fields))


def beginning() -> PreTrainedTokenizerBase:
    """A tokenizer that begins every encoding with a token of its own."""
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer")
    template = {"single": "<s> $A", "special_tokens": [("<s>", tokenizer.bos_token_id)]}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(**template)
    assert tokenizer("a").input_ids[0] == tokenizer.bos_token_id
    return tokenizer


def sample_of(task: Needle, tokenizer: PreTrainedTokenizerBase) -> Sample:
    (sample,) = task.generate(TokensOf(tokenizer), [0])
    return sample


@pytest.mark.parametrize("case", CONTEXTS, ids=lambda case: f"{case['context_length']}-{case['depth_percent']}")
def test_contexts_are_the_official_ones(shared: Path, tokenizer: PreTrainedTokenizerBase, case: dict):
    task = make(str(shared / "data"), context_length=case["context_length"], depth=case["depth_percent"])
    context = sample_of(task, tokenizer).context
    assert hashlib.sha256(context.encode()).hexdigest() == case["sha256"]
    assert context.index(NEEDLE.strip()) == case["needle_char_index"]
    assert len(tokenizer(context).input_ids) == case["n_tokens"]


@pytest.mark.parametrize("depth", [0, 33.3, 89, 100])
@pytest.mark.parametrize("style", ["official", "book"])
def test_the_needle_stands_behind_a_full_stop(root: str, tokenizer: PreTrainedTokenizerBase, style: str, depth: float):
    sample = sample_of(make(root, style, depth=depth), tokenizer)
    inside = sample.context.removeprefix("<|im_start|> This is a very long story book: <book> ")
    before, after = inside.removesuffix(" </book>.").split(NEEDLE)
    assert SENTENCES.startswith(before + after)
    assert before == "" or depth == 100 or before.endswith(".")
    assert len(tokenizer(before + after).input_ids) == pytest.approx(800 - len(tokenizer(NEEDLE).input_ids), abs=2)
    assert len(before) / len(before + after) == pytest.approx(depth / 100, abs=0.05)


def test_a_first_token_stands_before_the_needle_of_a_book(root: str, tokenizer: PreTrainedTokenizerBase):
    with_bos = beginning()
    book = sample_of(make(root, "book"), with_bos).context
    assert f".<s>{NEEDLE}" in book and book.startswith("<|im_start|> This is a very long story book: <book> <s>")
    assert "<s>" not in sample_of(make(root), with_bos).context
    assert "<s>" not in sample_of(make(root, "book"), tokenizer).context


def test_a_first_token_is_no_full_stop(root: str):
    """Where no sentence ends before its depth the needle comes first, before the token that begins the book too."""
    with_bos = beginning()
    book = sample_of(make(root, "book", depth=0.5), with_bos).context
    begun_twice = "<s><s>Sentence 0"  # the essays were encoded, cut, and encoded again
    assert book.startswith(f"<|im_start|> This is a very long story book: <book> <s>{NEEDLE}{begun_twice}")


def test_short_essays_are_repeated(root: str, tokenizer: PreTrainedTokenizerBase):
    context = sample_of(make(root, context_length=12000, depth=0), tokenizer).context.removeprefix(NEEDLE)
    assert context.startswith(SENTENCES + SENTENCES[:20])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": -1}, r"task\.depth=-1"),
        ({"depth": 101}, r"task\.depth=101"),
        ({"samples": 2}, r"task\.samples=2: allowed: 1, since a depth and a length have one prompt"),
        ({"context_length": 200}, r"task\.context_length=200: allowed: more than task\.buffer=200"),
        ({"max_new_tokens": 0}, r"task\.max_new_tokens=0"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_name(root: str, fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make(root, **fields)


def test_another_style_is_refused(root: str):
    with pytest.raises(ValueError, match=r"task\.style=novel: allowed: 'official' or 'book'"):
        task_of("needle/official", root, style="novel")


def test_a_context_without_room_for_the_needle_is_refused(root: str, tokenizer: PreTrainedTokenizerBase):
    with pytest.raises(ValueError, match=r"leaves 20 tokens for a needle of \d+: at least \d+") as error:
        sample_of(make(root, context_length=220), tokenizer)
    least = int(str(error.value).rsplit(" ", 1)[1])
    assert NEEDLE in sample_of(make(root, context_length=least), tokenizer).context
    with pytest.raises(ValueError, match="sample 0 only, got 3"):
        list(make(root).generate(TokensOf(tokenizer), [3]))


@pytest.mark.parametrize(("scorer", "score"), [("words", 10 / 11), ("words_without_dots", 1.0), ("rouge1", 8 / 11)])
def test_answers_are_scored_by_the_scorer(root: str, tokenizer: PreTrainedTokenizerBase, scorer: str, score: float):
    task = make(root, scorer=scorer)
    sample = sample_of(task, tokenizer)
    assert isinstance(task, Task) and task.metric == f"needle_{scorer}"
    assert task.score(" Eat a sandwich and sit in Dolores Park on a sunny day\n", sample) == pytest.approx(score)
    assert task.score("", sample) == 0.0
