"""LongBench's metrics: every official number at hand, and the rules that make them differ from their namesakes."""

import difflib
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.tasks.longbench import (
    check_packages,
    fuzz,
    qa_f1,
    qa_f1_zh,
    rouge,
    rouge_package,
    rouge_zh,
    score,
)
from kvbench.tasks.metrics import chinese, jieba_tokenizer


@pytest.mark.parametrize(
    ("task", "prediction", "worth"),
    [
        ("triviaqa", "\n\nParis\nQuestion: who?", 1.0),
        ("triviaqa", " \nParis", 0.0),  # a line of one blank is a line
        ("hotpotqa", "Paris\nQuestion who", 0.5),
        ("samsum", "Paris\nDialogue: x", 0.999999995),
    ],
)
def test_only_tasks_with_examples_read_the_first_line(task: str, prediction: str, worth: float):
    assert score(task, prediction, ["Rome", "Paris"]) == pytest.approx(worth, abs=1e-12)


@pytest.mark.parametrize(
    ("task", "references", "classes", "message"),
    [
        ("qasper", [], (), "qasper: an answer is scored against at least one reference"),
        ("trec", ["x"], (), "trec: an answer is scored among classes"),
        ("passage_retrieval_en", ["Section 3"], (), "'Section 3' names no paragraph"),
        ("passage_retrieval_zh", ["Paragraph 3"], (), "'Paragraph 3' names no paragraph"),
    ],
)
def test_what_cannot_be_scored_is_refused(task: str, references: list[str], classes: tuple[str, ...], message: str):
    with pytest.raises(ValueError, match=message):
        score(task, "3", references, classes)


@settings(max_examples=20)
@given(st.text(max_size=30), st.text(max_size=30))
def test_f1_looks_the_same_from_both_sides(text: str, other: str):
    assert qa_f1(text, other) == pytest.approx(qa_f1(other, text))
    assert 0 <= qa_f1_zh(text, other) <= 1


def test_chinese_words_lose_their_marks_after_the_cut():
    assert chinese("厦门大学。") == ["厦门大学", "。"]
    assert qa_f1_zh("《厦门大学》，", "厦门大学。") == pytest.approx(2 * 0.5 / 1.5)  # 《 is a word, 》 is none
    assert rouge_zh("今天天气不错", "今天天气不错") == pytest.approx(0.999999995)


def test_what_lies_in_the_temporary_folder_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """jieba keeps its dictionary there and reads what it finds."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "jieba.cache").write_bytes(b"another dictionary")
    jieba_tokenizer.cache_clear()
    assert chinese("厦门大学") == ["厦门大学"]
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]


def from_far_down(calls: int, prediction: str, reference: str) -> float:
    """`rouge`, asked from so many calls down."""
    return from_far_down(calls - 1, prediction, reference) if calls else rouge(prediction, reference)


# The calls of the official script: the module, `scorer`, `rouge_score`.
OFFICIAL = textwrap.dedent("""
    from rouge import Rouge
    def rouge_score(prediction, ground_truth):
        try:
            return Rouge().get_scores([prediction], [ground_truth], avg=True)["rouge-l"]["f"]
        except:
            return 0.0
    def scorer(longest):
        for words in range(longest, 0, -1):
            if rouge_score("x" + " y" * words, "x"):
                return words
    print(scorer(1010))
""")


def test_the_recursion_ends_where_it_does_officially():
    """Scored from anywhere: the package's recursion counts the calls of whoever asks, and knows no other limit."""
    done = subprocess.run([sys.executable, "-c", OFFICIAL], capture_output=True, text=True, check=True)
    most = int(done.stdout)
    limit = sys.getrecursionlimit()
    try:
        for depth in (limit, 5000):
            sys.setrecursionlimit(depth)
            for calls in (0, 300):
                assert from_far_down(calls, "x" + " y" * most, "x") > 0
                assert from_far_down(calls, "x" + " y" * (most + 1), "x") == 0.0
            assert sys.getrecursionlimit() == depth
    finally:
        sys.setrecursionlimit(limit)


def test_python_levenshtein_is_refused(monkeypatch: pytest.MonkeyPatch):
    fuzz.cache_clear()
    other = type("StringMatcher", (difflib.SequenceMatcher,), {})
    monkeypatch.setattr("fuzzywuzzy.fuzz.SequenceMatcher", other)
    for task in ("lcc", "repobench-p"):
        with pytest.raises(ValueError, match="pip uninstall -y python-Levenshtein Levenshtein"):
            check_packages(task)
    check_packages("qasper")


@pytest.mark.parametrize("task", ["gov_report", "vcsum", "multifieldqa_zh", "lcc"])
def test_a_package_that_is_not_there_or_another_is_named(task: str, monkeypatch: pytest.MonkeyPatch):
    def absent(_: str) -> str:
        raise metadata.PackageNotFoundError

    cached = (jieba_tokenizer, fuzz, rouge_package)
    for version, message in ((absent, "is not installed"), (lambda _: "9.9", r"installed is 9\.9")):
        for load in cached:
            load.cache_clear()
        monkeypatch.setattr(metadata, "version", version)
        with pytest.raises(ValueError, match=rf"{message}.*; run: pip install 'kvbench\[benchmarks\]'"):
            check_packages(task)
