"""RULER's needle tasks: any shard the same, an end where the official code has none, what is refused."""

import random
import re
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.support.errors import UserError
from kvbench.tasks.ruler.niah import Niah
from kvbench.tasks.task import Sample
from tests.tasks.ruler.conftest import count_words, make

TASKS = ("niah_single_1", "niah_multikey_2", "niah_multikey_3")


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 0}, r"task\.samples=0"),
        ({"context_length": -1}, r"task\.context_length=-1"),
        ({"era": "2025"}, r"task\.era=2025.*allowed: 2024, 2026"),
        ({"num_keys": 6}, r"at most 5 needles"),
        ({"num_keys": 41, "haystack": "essay"}, r"at most 40 needles"),
        ({"haystack": "essays"}, r"task\.haystack=essays: allowed: 'noise', 'needle', 'essay' or 'book'"),
        ({"step": 0}, r"task\.step=0"),
        ({"splitter": "regex"}, r"task\.splitter=regex: allowed: 'auto', 'english' or 'bare'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_name(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make("niah_single_1", **fields)


@pytest.mark.parametrize("era", ["2024", "2026"])
@pytest.mark.parametrize("name", ["niah_single_2", "niah_multivalue"])
def test_essays_fit_short_contexts_in_steps_of_our_own(name: str, era: str, root: Path):
    task = make(name, root, era=era, context_length=512, splitter="bare")
    samples = list(task.generate(count_words, range(5)))
    assert all(count_words(sample.prompt) + 128 <= 512 for sample in samples)
    assert all(answer in sample.context for sample in samples for answer in sample.references)
    assert all("word0 word1" in sample.context for sample in samples)
    assert task.version.endswith("-step25-punkt_bare")


def test_the_official_step_has_no_mark_and_does_not_fit_short_contexts(root: Path):
    task = make("niah_single_2", root, context_length=512, step=500, splitter="bare")
    assert task.version == "ruler-c3f5e3b-2026.3-punkt_bare"
    with pytest.raises(ValueError, match=r"smallest haystack has 500 words.*context_length for 50 samples: 686"):
        list(task.generate(count_words, [0]))
    assert make("niah_single_2", root, context_length=2048, splitter="bare").version == task.version
    assert make("niah_single_1", context_length=2048, step=7).version == "ruler-c3f5e3b-2026.3-step7"


@pytest.mark.parametrize(("era", "fewest", "most"), [("2024", 930, 970), ("2026", 3300, 3968)])
def test_essays_start_again_in_2026_and_end_in_2024(era: str, fewest: int, most: int, root: Path):
    task = make("niah_single_2", root, era=era, context_length=4096, splitter="bare")
    (sample,) = task.generate(count_words, [0])
    assert fewest < count_words(sample.prompt) <= most


def test_essays_are_joined_in_the_order_of_their_names(root: Path):
    (sample,) = make("niah_single_2", root, context_length=1024, splitter="bare").generate(count_words, [0])
    words = [word.strip(".\n") for word in sample.context.split() if word.startswith("word")]
    assert words == [f"word{number}" for number in range(len(words))] and len(words) > 450


def test_no_essays_is_an_error_that_says_where_they_belong(tmp_path: Path):
    task = make("niah_single_2", tmp_path, splitter="bare")
    with pytest.raises(
        FileNotFoundError, match=r"paul_graham_essays/\*\.txt \(data\.root=.*kvbench data pull paul_graham_essays"
    ):
        next(task.generate(count_words, [0]))
    with pytest.raises(FileNotFoundError, match=r"paul_graham_essays/\*\.txt"):
        _ = task.data_sha256


def test_essays_are_named_by_their_bytes(root: Path):
    before = make("niah_single_2", root).data_sha256
    (root / "paul_graham_essays" / "c.txt").write_text("more", encoding="utf-8")
    assert before and make("niah_single_2", root).data_sha256 not in (before, None)
    assert make("niah_single_1").data_sha256 is None


def windows(task: Niah, count: int) -> list[list[str]]:
    """The words of the haystack of each of the first prompts."""
    samples = task.generate(count_words, range(count))
    return [[word for word in re.findall(r"word\d+", sample.context)] for sample in samples]


@pytest.mark.parametrize("era", ["2024", "2026"])
def test_texts_that_vary_do_not_overlap_and_are_clusters(era: str, root: Path):
    settings = {"era": era, "context_length": 256, "splitter": "bare"}
    fixed = list(make("niah_single_2", root, **settings).generate(count_words, range(8)))
    varied = list(make("niah_single_2", root, texts="varied", **settings).generate(count_words, range(8)))
    parts = windows(make("niah_single_2", root, texts="varied", **settings), 8)
    count = len({sample.context_sha256 for sample in varied})
    assert 1 < count < 8 and len({sample.context_sha256 for sample in fixed}) == 8
    for first, second in combinations(range(8), 2):
        same = varied[first].context_sha256 == varied[second].context_sha256
        assert same == ((second - first) % count == 0) == bool({*parts[first]} & {*parts[second]})
    assert all(int(later[4:]) == int(word[4:]) + 1 for part in parts for word, later in pairwise(part))


def test_texts_of_another_task_are_the_same_parts(root: Path):
    settings = {"context_length": 256, "splitter": "bare", "texts": "varied"}
    first, second = (
        [sample.context_sha256 for sample in make(name, root, **settings).generate(count_words, range(3))]
        for name in ("niah_single_2", "niah_multikey_1")
    )
    assert first == second


def test_essays_that_end_are_probed_once_beyond_their_end_in_2024(root: Path):
    """As in the official loop: each probe draws. 500 words, 1000 of the 900 that there are, then the prompt of 900."""
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(count_words(text))
        return counted[-1]

    task = make("niah_single_2", root, era="2024", context_length=4096, splitter="bare")
    (sample,) = task.generate(count, [0])
    first, *others = counted
    assert len(others) == 2 and first < 600 and min(others) > 900
    assert {f"word{number}" for number in (0, 898)} <= {*sample.context.split()}


def test_books_are_haystacks(tmp_path: Path):
    (tmp_path / "pg19").mkdir()
    (tmp_path / "pg19" / "one.txt").write_text("".join(f"Word{number} is here. " for number in range(4000)), "utf-8")
    task = make("niah_single_2", tmp_path, haystack="book", texts="varied", context_length=256, splitter="bare")
    samples = list(task.generate(count_words, range(12)))
    assert len({sample.context_sha256 for sample in samples}) == 12 and task.files == ("pg19/one.txt",)
    (again,) = replace(task, seed=7).generate(count_words, [0])
    assert again.text_in_common != samples[0].text_in_common, "the seed draws the order"


def test_texts_that_cannot_vary_are_refused(root: Path):
    with pytest.raises(UserError, match=r"task.texts=varied.*haystack is noise.*task.haystack=essay or book"):
        make("niah_single_1", texts="varied")
    with pytest.raises(UserError, match=r"words, fewer than two parts of task.context_length=4096.*haystack=book"):
        list(make("niah_single_2", root, texts="varied", context_length=4096, splitter="bare").generate(len, [0]))
