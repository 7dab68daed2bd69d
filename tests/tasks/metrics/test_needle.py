"""The heat-map's scores on the golden answers, and where they differ."""

import json
from pathlib import Path

import pytest

from kvbench.tasks.needle import NEEDLE, overlap, overlap_without_dots, rouge1

GOLDEN = Path(__file__).parents[2] / "golden" / "metrics" / "needle.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["hand_scores"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["note"] or case["response"][:12])
def test_scores_are_the_official_ones(case: dict):
    pytest.importorskip("rouge_score")
    assert overlap(case["response"]) == pytest.approx(case["overlap_kvcache_factory"], abs=1e-9)
    assert overlap_without_dots(case["response"]) == pytest.approx(case["overlap_lava"], abs=1e-9)
    assert 10 * rouge1(case["response"], NEEDLE) == pytest.approx(case["rouge1_f_x10"], abs=1e-9)


def test_words_count_once_and_in_any_order():
    assert overlap("Day. sunny a on Park Dolores in sit and sandwich a eat a a a") == 1.0
    assert overlap("...") == overlap_without_dots("... .") == 0.0


@pytest.mark.parametrize(
    ("answer", "shared"),
    [("a sandwich.And sit", 4), ("in Dolores Park.on a sunny day...", 7), ("at 10 a.m.", 1), ("day.", 1)],
)
def test_a_full_stop_inside_a_word_parts_it_in_lava(answer: str, shared: int):
    assert overlap_without_dots(answer) == pytest.approx(shared / 11)
