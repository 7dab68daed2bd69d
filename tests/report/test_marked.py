import re

import pytest

from tests.report.test_table import table


def test_means_that_differ_beyond_chance_are_marked(cell, results) -> None:
    folder = results(
        cell([1.0] * 40, "full"),
        cell([1.0] * 39 + [0.0], "tova"),
        cell([0.0] * 40, "h2o"),
        cell([1.0] * 40, "full", task="pg19", metric="nll"),
        cell([0.5] * 40, "snapkv", task="pg19", metric="nll"),
    )
    text = table(folder, against="full")
    assert re.search(r"^h2o .*▼$", text, re.MULTILINE) and re.search(r"^snapkv .*▲$", text, re.MULTILINE)
    assert not re.search(r"^(tova|full) .*[▲▼]", text, re.MULTILINE)
    assert "worse than full beyond chance" in text.replace("\n", " ") and "▼" not in table(folder)
    with pytest.raises(ValueError, match=r"against=h20: no selected row has that policy; there is full, h2o, snapkv"):
        table(folder, against="h20")
