"""RULER's two metrics against the official evaluation, and where they differ from their namesakes."""

import json
from pathlib import Path

import pytest

from kvbench.tasks.ruler.task import postprocessed, string_match_all, string_match_part

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics" / "ruler_match.jsonl"
CASES = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
METRICS = {"string_match_all": string_match_all, "string_match_part": string_match_part}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_mean_is_the_official_score(case: dict):
    metric = METRICS[case["metric"]]
    scores = [metric(prediction, refs) for prediction, refs in zip(case["preds"], case["refs"], strict=True)]
    assert round(100 * sum(scores) / len(scores), 2) == case["official"]
    assert [postprocessed(prediction) for prediction in case["preds"]] == case["postprocessed"]


def test_there_are_golden_cases_of_both():
    assert {case["metric"] for case in CASES} == set(METRICS) and len(CASES) >= 8


def test_a_line_break_separates_what_a_namesake_would_join():
    assert string_match_all("123\n4567", ["1234567"]) == 0.0


def test_one_of_several_references_is_enough_for_questions():
    assert string_match_part("in Normandy", ["France", "normandy"]) == 1.0
    assert string_match_all("in Normandy", ["France", "normandy"]) == 0.5


@pytest.mark.parametrize("metric", METRICS)
def test_no_reference_is_refused(metric: str):
    with pytest.raises(ValueError, match="at least one reference"):
        METRICS[metric]("1", [])
