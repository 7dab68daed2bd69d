"""InfiniteBench's scorers on whole files of released answers and on odd ones, and where the two scorers differ."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbench.tasks import infinitebench, metrics
from kvbench.tasks.infinitebench import metric_of, references

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics"
FILES = [json.loads(line) for line in (GOLDEN / "infinitebench_files.jsonl").read_text("utf-8").splitlines()]
EDGES = json.loads((GOLDEN / "infinitebench_edge_cases.json").read_text("utf-8"))
GIVEN = {
    "kv_retrieval list label (current HF data)": (infinitebench.kv_retrieval, "5e6b", [str(["5e6b"])]),
    "kv_retrieval string label": (infinitebench.kv_retrieval, "5e6b", ["5e6b"]),
    'math_calc "[1, -3, 5]" vs [1,-3,5]': (infinitebench.math_calc, "[1, -3, 5]", ["1", "-3", "5"]),
    'math_find "-88" vs [-88]': (infinitebench.math_find, "-88", ["-88"]),
    'math_find "88.5" vs [88]': (infinitebench.math_find, "88.5", ["88"]),
    'longdialogue "ace-man" vs ["ACE"]': (infinitebench.longdialogue, "ace-man", ["ACE"]),
    'longdialogue "Ace" vs ["Ace"] (label not upper-cased)': (infinitebench.longdialogue, "Ace", ["Ace"]),
    'longdialogue "ACE ROTHSTEIN" vs ["ACE ROTHSTEIN","ACE"]': (
        infinitebench.longdialogue,
        "ACE ROTHSTEIN",
        ["ACE ROTHSTEIN", "ACE"],
    ),
    'choice "B or A" vs A': (infinitebench.choice, "B or A", ["x", "A"]),
    'choice "D is wrong, A is right"': (infinitebench.choice, "D is wrong, A is right", ["x", "A"]),
    'choice "ABC"': (infinitebench.choice, "ABC", ["x", "A"]),
    'choice " a"': (infinitebench.choice, " a", ["x", "A"]),
}
CHOICES = ["Snowfield", "Hall Farm", "Treddleston", "Oakbourne"]


@pytest.mark.parametrize("name", EDGES)
def test_odd_answers_score_as_officially(name: str):
    metric, prediction, labels = GIVEN[name]
    if EDGES[name] == "ValueError":
        with pytest.raises(ValueError, match=r"88\.5 has a fraction"):
            metric(prediction, labels)
    else:
        assert metric(prediction, labels) == pytest.approx(EDGES[name], abs=1e-9)


@pytest.mark.parametrize("case", FILES, ids=lambda case: f"{case['model']}-{case['task']}")
def test_the_mean_over_a_released_file_is_the_official_one(case: dict[str, Any], shared: Path):
    path = shared / "golden" / "infinitebench_predictions" / case["model"] / f"preds_{case['task']}.jsonl"
    if not path.is_file():
        return  # of the files that were scored some are at hand; `test_files_at_hand` counts them
    assert hashlib.sha256(path.read_bytes()).hexdigest() == case["sha256"]
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for scorer, wanted in (
        ("official_88b3daa", case["official_88b3daa"]),
        ("loose", case["lava"]),
        ("loose", case["kvpress"]),
    ):
        metric = metric_of(case["task"], scorer)
        scores = [metric(row["prediction"], references(case["task"], row["ground_truth"], CHOICES)) for row in rows]
        assert len(scores) == case["n"]
        assert sum(scores) / len(scores) == pytest.approx(wanted, abs=1e-9), scorer


def test_files_at_hand(shared: Path):
    held = {
        path.parent.name + path.stem[5:] for path in (shared / "golden").glob("infinitebench_predictions/*/*.jsonl")
    }
    assert len(held) >= 19 and held <= {f"{case['model']}_{case['task']}" for case in FILES}


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
