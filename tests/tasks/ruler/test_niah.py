"""RULER's needle tasks: byte parity with the official rows, any shard the same, an end where theirs has none."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kvbench.tasks.ruler.niah import Niah
from kvbench.tasks.sample import Sample, Task

GOLDEN = Path(__file__).parents[2] / "golden" / "ruler"
TASKS = {
    "niah_single_1": ("noise", "words", "numbers"),
    "niah_multikey_2": ("needle", "words", "numbers"),
    "niah_multikey_3": ("needle", "uuids", "uuids"),
}


def make(name: str, **fields) -> Niah:
    haystack, keys, values = TASKS[name]
    return Niah(f"ruler/{name}", haystack, keys, values, **fields)


def count_words(text: str) -> int:
    """A tokenizer of one token a word."""
    return len(text.split())


@pytest.fixture(scope="module")
def count_tokens() -> Callable[[str], int]:
    tokenizer = Tokenizer.from_file(str(GOLDEN / "tokenizer" / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("context_length", [2048, 4096])
@pytest.mark.parametrize("name", TASKS)
def test_prompts_are_the_official_ones(name: str, context_length: int, count_tokens):
    lines = (GOLDEN / f"era2026_{context_length}" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    samples = list(make(name, context_length=context_length).generate(count_tokens, range(len(rows))))
    assert [sample.context + sample.question for sample in samples] == [row["input"] for row in rows]
    assert [sample.answer_prefix for sample in samples] == [row["answer_prefix"] for row in rows]
    assert [list(sample.references) for sample in samples] == [row["outputs"] for row in rows]
    lengths = [count_tokens(sample.prompt) + sample.max_new_tokens for sample in samples]
    assert lengths == [row["length"] for row in rows]


def test_the_question_starts_after_the_haystack():
    (sample,) = make("niah_single_1").generate(count_words, [0])
    assert sample.context.startswith("A special magic number is hidden") and sample.context.endswith(".")
    assert sample.question.startswith("\nWhat is the special magic number for ")
    assert sample.question.endswith(" mentioned in the provided text?")
    assert sample.answer_prefix.startswith(" The special magic number for ") and sample.answer_prefix.endswith(" is")
    assert sample.references[0] in sample.context


@settings(max_examples=20, deadline=None)
@given(indices=st.sets(st.integers(0, 11)), samples=st.integers(1, 500))
def test_a_sample_is_the_same_in_any_shard(indices: set[int], samples: int):
    everything = list(make("niah_multikey_2", samples=12).generate(count_words, range(12)))
    shard = list(make("niah_multikey_2", samples=samples).generate(count_words, list(indices)))
    assert shard == [everything[index] for index in sorted(indices)]


def test_seeds_differ_and_the_global_generators_are_left_alone():
    random.seed(3)
    before, numpy_before = random.getstate(), np.random.get_state()[1].tolist()
    first, second = (next(make("niah_single_1", seed=seed).generate(count_words, [0])) for seed in (42, 43))
    assert first != second
    assert random.getstate() == before and np.random.get_state()[1].tolist() == numpy_before


def samples_or_error(task: Niah) -> list[Sample] | str:
    try:
        return list(task.generate(count_words, range(task.samples)))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", TASKS)
def test_a_context_too_short_is_refused_with_the_length_that_works(name: str):
    message = samples_or_error(make(name, context_length=100, samples=20))
    assert isinstance(message, str) and f"task.context_length=100 cannot hold ruler/{name}" in message
    smallest = int(message.rsplit(" ", 1)[1])
    samples = samples_or_error(make(name, context_length=smallest, samples=20))
    assert len(samples) == 20 and not isinstance(samples, str)
    assert all(count_words(sample.prompt) + 128 <= smallest for sample in samples)
    assert isinstance(samples_or_error(make(name, context_length=smallest - 1, samples=20)), str)


def test_several_values_and_queries_ask_in_the_plural():
    task = Niah(
        "ruler/many", "needle", "words", "numbers", num_keys=2, num_values=2, num_queries=2, context_length=1024
    )
    (sample,) = task.generate(count_words, [0])
    asked = sample.question.split(" for ")[1].split(" mentioned")[0]
    first, second = asked.split(", and ")
    assert sample.question.startswith("\nWhat are all the special magic numbers for ")
    told = [line for line in sample.context.splitlines() if f" {first} " in line] + [
        line for line in sample.context.splitlines() if f" {second} " in line
    ]
    assert sorted(line.split(": ")[1].rstrip(".") for line in told) == sorted(sample.references)
    assert task.score(" and ".join(sample.references[:3]), sample) == 0.75


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 0}, r"task\.samples=0"),
        ({"context_length": -1}, r"task\.context_length=-1"),
        ({"era": "2025"}, r"task\.era='2025'.*choose one of 2026"),
        ({"num_keys": 6}, r"at most 5 needles"),
        ({"haystack": "essay"}, r"task\.haystack='essay'.*noise, needle"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_name(fields: dict, message: str):
    legal = {"name": "ruler/x", "haystack": "noise", "keys": "words", "values": "numbers"}
    with pytest.raises(ValueError, match=message):
        Niah(**(legal | fields))


def test_a_niah_is_a_task_and_names_its_protocol():
    task = make("niah_single_1", era=2026)  # type: ignore[arg-type]
    assert isinstance(task, Task)
    assert (task.version, task.metric) == ("ruler-c3f5e3b-2026.1", "string_match_all")
