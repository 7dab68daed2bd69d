"""RULER's question answering: which documents stand where, and byte parity as far as the official rows' data goes.

The official rows at hand were made from LongBench passages: the first eight of a row are a SQuAD article cut at 700
characters, all ten a HotpotQA question cut at 900; the rest of the data is not at hand.
"""

import json
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.ruler.conftest import count_words, make

ERAS = ("2024", "2026")


def documents(text: str) -> list[str]:
    """The documents of a prompt."""
    inside = text.split("given documents.\n\n", 1)[1].rsplit("\n\nAnswer the question based", 1)[0]
    return re.split(r"(?:\A|\n\n)Document \d+:\n", inside)[1:]


def official(shared: Path, era: str, name: str) -> list[dict[str, Any]]:
    file = shared / "data" / "ruler" / f"era{era}_4096" / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def longbench(shared: Path, name: str) -> list[tuple[dict[str, Any], list[str]]]:
    """Rows and their passages."""
    lines = (shared / "data" / "longbench" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row, [text.strip() for text in re.split(r"Passage \d+:\n", row["context"])[1:]]) for row in rows]


@pytest.fixture
def passages(shared: Path, tmp_path: Path) -> Path:
    """A data root with stand-ins of the official rows' data sets: the same first questions, other distractors.

    Every other paragraph of an article asks its question; the others ask one that has no answer.
    """
    articles, questions = [], []
    for row, texts in longbench(shared, "2wikimqa"):
        answers = [{"text": answer} for answer in row["answers"] * 3]
        paragraphs = [
            {"context": text[:700], "qas": [{"question": row["input"], "is_impossible": odd, "answers": answers}]}
            for text, odd in zip(texts[:8], cycle([False, True]), strict=False)
        ]
        articles.append({"paragraphs": paragraphs})
    for row, texts in longbench(shared, "hotpotqa"):
        parts = [text.split("\n", 1) for text in texts]
        context = [[title, [text[:900]]] for title, text in parts]
        questions.append({"question": row["input"], "answer": row["answers"][0], "context": context})
    (tmp_path / "ruler").mkdir()
    (tmp_path / "ruler" / "squad.json").write_text(json.dumps({"data": articles}), encoding="utf-8")
    (tmp_path / "ruler" / "hotpotqa.json").write_text(json.dumps(questions), encoding="utf-8")
    return tmp_path


def test_a_question_with_its_own_documents_is_the_official_row(shared: Path, passages: Path, count_tokens):
    """In 2024 ten documents fit, which are all of the question's own: nothing is drawn from the rest."""
    by_question = {row["input"].rsplit("Question: ", 1)[1]: row for row in official(shared, "2024", "qa_2")}
    task = make("qa_2", passages, era="2024", samples=3)
    compared = 0
    for sample in task.generate(count_tokens, range(3)):
        row = by_question.get(sample.prompt.rsplit("Question: ", 1)[1])
        if row:
            compared += 1
            assert sample.prompt == row["input"] and list(sample.references) == row["outputs"]
            assert count_tokens(sample.prompt) + 32 == row["length"]
    assert compared == 2


def test_an_articles_paragraphs_stand_where_they_stand_officially(shared: Path, passages: Path, count_tokens):
    """In 2024 the article of eight and two others; those others come from data that is not at hand."""
    article = {text[:700] for text in longbench(shared, "2wikimqa")[0][1][:8]}
    task = make("qa_1", passages, era="2024", samples=3)
    for sample, row in zip(task.generate(count_tokens, range(3)), official(shared, "2024", "qa_1"), strict=True):
        ours, theirs = documents(sample.prompt), documents(row["input"])
        assert len(theirs) == 10 and len(article & set(theirs)) == 8
        assert [text in article and text for text in ours] == [text in article and text for text in theirs]
        assert row["input"].endswith(sample.question + sample.answer_prefix)
        assert list(sample.references) == row["outputs"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_the_text_around_documents_is_the_official_one(shared: Path, era: str, name: str, root: Path):
    """The official documents and question, put into one of our prompts, make the official row."""
    (sample,) = make(name, root, era=era, context_length=2048).generate(count_words, [0])
    question = sample.question.rsplit("Question: ", 1)[1]
    for row in official(shared, era, name):
        theirs = row["input"] + row.get("answer_prefix", "")
        query = theirs.rsplit("Question: ", 1)[1].removesuffix(" Answer:")
        ours = sample.prompt.replace(listed(documents(sample.prompt)), listed(documents(theirs)))
        assert ours.replace(f"Question: {question}", f"Question: {query}") == theirs


def listed(texts: list[str]) -> str:
    return "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(texts, start=1))


@pytest.mark.parametrize("era", ERAS)
def test_question_i_is_asked_in_sample_i_whatever_the_length(era: str, root: Path):
    short, long = (
        list(make("qa_1", root, era=era, context_length=length).generate(count_words, range(4)))
        for length in (250, 600)
    )
    assert [sample.question for sample in short] == [sample.question for sample in long]
    assert [sample.references for sample in short] == [(f"answer 0.{n}",) * 2 for n in range(3)] + [("answer 1.0",) * 2]
    for sample in (*short, *long):
        assert any(sample.references[0] in text for text in documents(sample.prompt))
        assert count_words(sample.prompt) + 32 <= (250 if sample in short else 600)
    assert len(documents(short[0].prompt)) < len(documents(long[0].prompt))


@pytest.mark.parametrize("era", ERAS)
def test_an_article_is_shown_whole_before_anything_else(era: str, root: Path):
    for sample in make("qa_1", root, era=era, context_length=300).generate(count_words, range(5)):
        names = {text.split()[1] for text in documents(sample.prompt)}
        article = sample.references[0].split()[1].split(".")[0]
        assert {f"{article}.{number}" for number in range(3)} <= names
        assert len(names) == len(documents(sample.prompt)) >= 10


@pytest.mark.parametrize("era", ERAS)
def test_other_documents_are_drawn_anew_for_each_sample_from_all_articles(era: str, root: Path):
    others = [
        frozenset(int(text.split()[1].split(".")[0]) for text in documents(sample.prompt)) - {index // 3}
        for index, sample in enumerate(make("qa_1", root, era=era, context_length=300).generate(count_words, range(6)))
    ]
    drawn = frozenset().union(*others)
    assert len({*others}) == 6
    assert min(drawn) < 10 and max(drawn) >= 30


@pytest.mark.parametrize("era", ERAS)
def test_a_questions_own_documents_are_all_there_even_where_only_they_fit(era: str, root: Path):
    samples = list(make("qa_2", root, era=era, context_length=235).generate(count_words, range(3)))
    for row, sample in enumerate(samples):
        titles = {text.split("\n")[0] for text in documents(sample.prompt)}
        assert {f"Title {9 * row + number}" for number in range(10)} <= titles
        assert count_words(sample.prompt) + 32 <= 235


def test_a_length_without_room_for_its_documents_is_refused(root: Path):
    with pytest.raises(
        ValueError, match=r"cannot hold ruler/qa_2.*10 documents.*smallest context_length for 5 samples"
    ):
        list(make("qa_2", root, context_length=100, samples=5).generate(count_words, range(5)))


def test_more_samples_than_questions_are_refused(root: Path):
    with pytest.raises(ValueError, match=r"task\.samples=121: squad has 120 questions"):
        list(make("qa_1", root, samples=121).generate(count_words, [0]))


def test_a_file_of_another_kind_is_refused(root: Path):
    (root / "ruler" / "squad.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"squad\.json is not squad as published"):
        list(make("qa_1", root).generate(count_words, [0]))
