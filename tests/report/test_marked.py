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
    with pytest.raises(ValueError, match=r"against=h20: no selected row has that; there is policy full, h2o, snapkv"):
        table(folder, against="h20")


def test_a_policy_with_several_scores_is_named_by_a_selection(cell, results) -> None:
    folder = results(
        cell([1.0] * 40, "snapkv"),
        cell([0.0] * 40, "snapkv", score="caote"),
        cell([0.0] * 40, "h2o"),
    )
    with pytest.raises(ValueError, match=r"against=snapkv: .* 2 baselines.*like policy=snapkv,score=(attn|caote)"):
        table(folder, against="snapkv")
    attn, caote = (table(folder, against=f"policy=snapkv,score={score}") for score in ("attn", "caote"))
    assert re.search(r"^h2o .*▼$", attn, re.MULTILINE) and re.search(r"^snapkv +caote .*▼$", attn, re.MULTILINE)
    assert re.search(r"^snapkv +attn .*▲$", caote, re.MULTILINE) and not re.search(r"^h2o .*[▲▼]", caote, re.MULTILINE)
    with pytest.raises(ValueError, match="no selected row has that"):
        table(folder, against="policy=snapkv,score=none")
    with pytest.raises(ValueError, match="rows have no column 'scor'"):
        table(folder, against="policy=snapkv,scor=attn")
