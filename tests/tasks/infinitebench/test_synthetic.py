"""Made-up rows of InfiniteBench: of the same text as the published ones, as long as asked, at all depths, by seed."""

import json
from pathlib import Path

import pytest

from kvbench.tasks.infinitebench import DEPTHS, NOISE, STRIDE, fields, hidden, retrieval
from kvbench.tasks.task import Task
from tests.tasks.infinitebench.conftest import Words, make

MADE = ("passkey", "number_string", "kv_retrieval")


@pytest.mark.parametrize("member", MADE)
def test_a_row_is_as_long_as_its_length_allows(root: Path, member: str):
    for length in (100, 301, 1000):
        task = make(f"infinitebench_synthetic/{member}", root, context_length=length)
        assert isinstance(task, Task) and task.context_length == length
        for sample in task.generate(Words(), [0, 5, 58]):
            tokens = Words()(sample.prompt) + sample.max_new_tokens
            unit = 2 if member == "kv_retrieval" else len(NOISE.split())
            assert length - unit < tokens <= length
            assert sample.references[0] in sample.context and task.score(sample.references[0], sample) == 1.0


@pytest.mark.parametrize("member", MADE)
def test_a_sample_is_the_same_whatever_the_others(root: Path, member: str):
    task = make(f"infinitebench_synthetic/{member}", root)
    together = {sample.id: sample for sample in task.generate(Words(), [0, 3, 4, 9])}
    (alone,) = task.generate(Words(), [9])
    assert alone == together[9] and len({sample.references for sample in together.values()}) == 4
    (other,) = make(f"infinitebench_synthetic/{member}", root, seed=7).generate(Words(), [9])
    assert other.references != alone.references


def test_the_first_samples_are_spread_over_all_depths():
    depths = [index * STRIDE % DEPTHS for index in range(DEPTHS)]
    assert sorted(depths) == list(range(DEPTHS))
    assert all({depth * 4 // DEPTHS for depth in depths[start : start + 7]} == {0, 1, 2, 3} for start in range(50))


def test_digits_repeat_in_number_strings(root: Path):
    """Ten digits of which five are copies of others: at most five are different."""
    for sample in make("infinitebench_synthetic/number_string", root).generate(Words(), range(20)):
        assert len(sample.references[0]) == 10 and len(set(sample.references[0])) <= 5


def test_a_length_that_holds_no_row_is_refused(root: Path):
    with pytest.raises(ValueError, match=r"context_length=20 cannot hold .*sample 0 takes 45"):
        list(make("infinitebench_synthetic/passkey", root, context_length=20).generate(Words(), [0]))
    with pytest.raises(ValueError, match=r"task\.member=math_find"):
        make("infinitebench_synthetic/passkey", root, member="math_find")
    with pytest.raises(ValueError, match="start at 0"):
        list(make("infinitebench_synthetic/passkey", root).generate(Words(), [-1]))


def test_a_tokenizer_that_never_grows_ends_the_search(root: Path):
    task = make("infinitebench_synthetic/passkey", root)
    (sample,) = task.generate(lambda text: 1, [0])  # type: ignore[arg-type]
    assert sample.context.count(NOISE) > 2**16


@pytest.mark.parametrize("member", MADE)
def test_published_rows_are_made_of_the_same_text(member: str, shared: Path):
    """The real rows, from what they hide and ask: 5220 lines of noise, 2500 pairs; row i asks for pair 5 i."""
    lines = (shared / "data" / "infinitebench" / f"{member}.jsonl").read_text("utf-8").splitlines()
    for index, line in enumerate(lines):
        real = json.loads(line)
        if member == "kv_retrieval":
            records = json.loads(real["context"].removeprefix("JSON data:\n"))
            row = retrieval(records, list(records)[5 * index])
            assert len(records) == 2500
        else:
            name = {"passkey": "pass key", "number_string": "sequence of digits"}[member]
            row = hidden(name, real["answer"][0], 5220, 0)
        assert {key: real[key] for key in row} == row
        assert fields(member, row)["context"] == real["context"]
