"""vt, cwe and fwe: any shard the same, lengths kept, an end where the official code has none, what is refused."""

import hashlib
import json
from pathlib import Path

import pytest

from kvbench.tasks.ruler import cwe
from kvbench.tasks.task import Sample
from tests.tasks.ruler.conftest import count_words, make

NAMES = ("vt", "cwe", "fwe")
ERAS = ("2024", "2026")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_the_same_in_any_shard(name: str, era: str):
    everything = list(make(name, era=era, context_length=2048).generate(count_words, range(6)))
    shard = list(make(name, era=era, context_length=2048, samples=500).generate(count_words, [5, 1]))
    assert shard == [everything[1], everything[5]]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", ["vt", "cwe"])
def test_a_context_too_short_is_refused_with_the_length_that_works(name: str, era: str):
    with pytest.raises(ValueError, match=rf"cannot hold ruler/{name}.*beside a solved example") as error:
        list(make(name, era=era, context_length=150, samples=5).generate(count_words, range(5)))
    smallest = int(str(error.value).rsplit(" ", 1)[1])
    assert len(list(make(name, era=era, context_length=smallest, samples=5).generate(count_words, range(5)))) == 5


@pytest.mark.parametrize("era", ERAS)
def test_variables_of_a_chain_have_names_of_their_own(era: str, monkeypatch: pytest.MonkeyPatch):
    """With two letters every other chain of five would have a name twice."""
    monkeypatch.setattr("string.ascii_uppercase", "QX")
    for sample in make("vt", era=era, context_length=2048).generate(count_words, range(12)):
        assert len({*sample.references}) == 5
        assert all(f"VAR {name} = " in sample.context for name in sample.references)


@pytest.mark.parametrize("era", ERAS)
def test_an_example_that_no_length_holds_ends_the_search_too(era: str):
    with pytest.raises(
        ValueError, match=r"cannot hold ruler/vt.*no context_length is large enough with this tokenizer"
    ):
        list(make("vt", era=era).generate(len, [0]))


def test_a_vocabulary_without_three_words_is_refused():
    with pytest.raises(ValueError, match=r"task\.context_length=249 of ruler/fwe: allowed: at least 250"):
        make("fwe", context_length=249)
    assert len(list(make("fwe", context_length=250).generate(count_words, [0]))) == 1


@pytest.mark.parametrize(("name", "step"), [("vt", 4), ("cwe", 9), ("fwe", 0)])
def test_a_step_below_the_smallest_text_is_refused(name: str, step: int):
    with pytest.raises(ValueError, match=rf"task\.step={step} of ruler/{name}: allowed: {step + 1} or more"):
        make(name, step=step)


def test_long_lists_of_2026_come_from_the_benchmarks_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = make("cwe", tmp_path, context_length=65536)

    def first() -> Sample:
        return next(task.generate(lambda text: len(text) // 8, [0]))

    with pytest.raises(FileNotFoundError, match=r"ruler/english_words\.json.*data\.root=FOLDER"):
        first()
    (tmp_path / "ruler").mkdir()
    content = json.dumps({str(number): f"word{number}" for number in range(30000)})
    (tmp_path / "ruler" / "english_words.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"english_words\.json has SHA-256 .*the benchmark's own has affcd6d4"):
        first()
    monkeypatch.setattr(cwe, "ENGLISH_WORDS_SHA256", hashlib.sha256(content.encode()).hexdigest()[:8])
    assert all(word.startswith("word") for word in first().references)
    assert task.data_sha256 is None


@pytest.mark.parametrize("context_length", [1500, 20000])
def test_sizes_that_are_surely_too_short_are_drawn_and_not_counted(
    context_length: int, monkeypatch: pytest.MonkeyPatch
):
    """The same sample as where every probe is counted, and not many of them are."""
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return sum(2 + len(word) // 4 for word in text.split())

    def first() -> tuple[str, int]:
        counted.clear()
        (sample,) = make("cwe", context_length=context_length, era="2024").generate(count, [0])
        return sample.prompt, len(counted)

    (skimmed, few), _ = first(), monkeypatch.setattr(cwe, "surely_short", lambda *_: 0)
    every, many = first()
    assert skimmed == every
    assert context_length < 20000 or few < many / 2


def test_the_pieces_of_a_short_example_of_2024_end_in_plain_line_breaks():
    """A tokenizer of many tokens a word leaves five sentences of noise, cut at their full stops and joined again."""
    (sample,) = make("vt", era="2024", context_length=2048).generate(lambda text: 2 * count_words(text), [0])
    example, _, rest = sample.context.partition(" Question: ")
    assert example.count("There and back again.") == 5 and "The grass is green.  The sky" in example
    assert ". \n" not in sample.context and "back again.\n The grass" in example and "back again.\n " in rest
