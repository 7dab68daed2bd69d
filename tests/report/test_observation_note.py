"""The sentence of a header about window, newest tokens and pool: which policies have which value."""

import pytest

from kvbench.report.tables.observation_note import windows

SIZES = {"snapkv": 32, "snapkv window=16": 16, "snapkv layout=query_heads": 32, "h2o": 16}


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("snapkv", "snapkv window=16"), "16 (snapkv window=16), 32 (snapkv)"),
        (("snapkv", "snapkv window=16", "h2o"), "16 (h2o, snapkv window=16), 32 (snapkv)"),
        (("snapkv", "snapkv layout=query_heads", "h2o"), "16 (h2o), 32 (snapkv)"),
    ],
)
def test_a_policy_with_several_values_is_named_by_its_labels(labels: tuple[str, ...], said: str) -> None:
    """A label leaves out the usual value, which the header has; one name with two values would tell nothing."""
    cells = {label: {"policy": {"accepts": ["budget"], "window": SIZES[label]}} for label in labels}
    assert windows({label: label for label in labels}, cells.get) == f"cells differ in window {said}"


def test_a_part_of_the_prompt_is_said_in_percent() -> None:
    cell = {"policy": {"accepts": ["budget"], "window": {"part": 0.25, "of": "prompt"}}}
    assert windows({"a": "snapkv"}, {"a": cell}.get).startswith("window 25 % of the prompt")
