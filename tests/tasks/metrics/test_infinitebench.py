"""InfiniteBench's scorers on whole files of released answers and on odd ones, and where the two scorers differ."""

import sys

import pytest

from kvbench.tasks import infinitebench, metrics


@pytest.mark.parametrize(
    ("prediction", "strict", "generous"),
    [
        ("I think it is B", 1, 1),
        ("A, no, B", 0, 1),
        ("The answer is: Hall Farm", 1, 1),
        ("The answer is:", 0, 0),
        ("Hall Farm", 1, 1),
        ("AB", 0, 0),
        ("so AB or B", 0, 1),
        ("", 0, 0),
        (" \n", 0, 0),
    ],
)
def test_multiple_choice(prediction: str, strict: float, generous: float):
    assert infinitebench.choice(prediction, ["Hall Farm", "B"]) == strict
    assert infinitebench.loose_choice(prediction, ["Hall Farm", "B"]) == generous


@pytest.mark.parametrize(
    ("prediction", "strict", "generous"),
    [
        ("B.", 1, 1),
        ("B: load", 1, 1),
        ("B", 0, 1),
        ("load", 0, 1),
        ("The answer is: Option B", 1, 1),
        ("The correct option is: `load`", 1, 1),
        ("The bug is: load", 1, 1),
        ("", 0, 0),
    ],
)
def test_code_debug(prediction: str, strict: float, generous: float):
    assert infinitebench.code_debug(prediction, ["load", "B"]) == strict
    assert infinitebench.loose_code_debug(prediction, ["load", "B"]) == generous


def test_a_name_of_the_dialogue_may_be_a_part_of_a_loose_answer():
    labels = ["GAGGI", "Remo Gaggi"]
    assert (
        infinitebench.longdialogue("It is 'Gaggi'.", labels)
        == infinitebench.loose_longdialogue("It is Remo Gaggi", labels)
        == 1.0
    )
    assert (
        infinitebench.longdialogue("Gaggis", labels) == 0.0
        and infinitebench.loose_longdialogue("Gaggis", labels) == 1.0
    )


def test_numbers():
    assert (
        infinitebench.passkey("The 2 keys: 71432", ["71432"]) == 0.0
        and infinitebench.passkey("x71432.", ["71432"]) == 1.0
    )
    assert infinitebench.code_run("is `-14`.", ["-14"]) == 1.0 and infinitebench.code_run("-14 it is", ["-14"]) == 0.0
    assert infinitebench.math_find("about 88.5", ["88.5"]) == infinitebench.math_find("it is 88, or 9", ["88"]) == 1.0
    with pytest.raises(ValueError, match=r"88\.5 has a fraction"):
        infinitebench.math_find("88.5", ["88"])
    assert infinitebench.math_find("9" * 5000, ["88"]) == infinitebench.math_calc("9" * 5000, ["88"]) == 0.0
    assert infinitebench.math_calc("007, 08 and 9", ["7", "8", "1", "9"]) == 0.5
    assert infinitebench.math_calc("1 7 8", ["7", "8"], skip_first=True) == 1.0


def test_free_answers():
    assert infinitebench.qa_english("The hebrides!", ["Scotland", "hebrides"]) == 1.0
    assert infinitebench.qa_english("a an the", ["a"]) == 0.0
    assert infinitebench.qa_chinese("《胡 一刀》", ["胡一刀。"]) == pytest.approx(2 * 3 / (4 + 3))


def test_summaries_count_lines():
    """Lines share [a b] and [d e]; of one line each the longest common subsequence has two words, or three."""
    pytest.importorskip("rouge_score")
    assert infinitebench.summary("a b\nd e", ["d e c\na b"]) == pytest.approx(2 * 1 * 0.8 / 1.8)
    assert infinitebench.summary("a b d e", ["d e c a b"]) == pytest.approx(2 * 0.5 * 0.4 / 0.9)
    assert infinitebench.summary("running", ["runs", "walks"]) == infinitebench.summary("", ["runs"]) == 0.0
    assert infinitebench.summary("x", ["runs", "x"]) == 1.0


def test_without_rouge_score_the_fix_is_named(monkeypatch: pytest.MonkeyPatch):
    metrics.rouge_scorer.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ValueError, match=r"pip install 'kvbench\[benchmarks\]'"):
        infinitebench.summary("a", ["b"])
    metrics.rouge_scorer.cache_clear()


@pytest.mark.parametrize(
    "metric",
    [
        infinitebench.passkey,
        infinitebench.kv_retrieval,
        infinitebench.choice,
        infinitebench.math_calc,
        infinitebench.loose_choice,
        infinitebench.summary,
    ],
)
def test_no_reference_is_refused(metric: infinitebench.Metric):
    with pytest.raises(ValueError, match="at least one reference"):
        metric("1", [])
