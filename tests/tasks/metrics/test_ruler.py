"""RULER's two metrics against the official evaluation, and where they differ from their namesakes."""

import pytest

from kvbench.tasks.ruler.task import postprocessed, string_match_all, string_match_part

METRICS = {"string_match_all": string_match_all, "string_match_part": string_match_part}


def test_a_line_break_separates_what_a_namesake_would_join():
    assert string_match_all("123\n4567", ["1234567"]) == 0.0


def test_control_characters_read_as_line_breaks_and_none_is_at_an_end():
    assert postprocessed(" \x0112\t34\x1f\n") == "12\n34"


def test_one_of_several_references_is_enough_for_questions():
    assert string_match_part("in Normandy", ["France", "normandy"]) == 1.0
    assert string_match_all("in Normandy", ["France", "normandy"]) == 0.5


@pytest.mark.parametrize("metric", METRICS)
def test_no_reference_is_refused(metric: str):
    with pytest.raises(ValueError, match="at least one reference"):
        METRICS[metric]("1", [])
