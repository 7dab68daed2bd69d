"""string_match_all against the official evaluation, and where it differs from its namesakes."""

import json
from pathlib import Path

import pytest

from kvbench.tasks.metrics.ruler import string_match_all

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics" / "ruler_match.jsonl"
CASES = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
ALL = [case for case in CASES if case["metric"] == "string_match_all"]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case["name"])
def test_the_mean_is_the_official_score(case: dict):
    scores = [string_match_all(prediction, refs) for prediction, refs in zip(case["preds"], case["refs"], strict=True)]
    assert round(100 * sum(scores) / len(scores), 2) == case["official"]


def test_there_are_golden_cases():
    assert len(ALL) >= 5


def test_a_line_break_separates_what_a_namesake_would_join():
    assert string_match_all("123\n4567", ["1234567"]) == 0.0


def test_no_reference_is_refused():
    with pytest.raises(ValueError, match="at least one reference"):
        string_match_all("1", [])
