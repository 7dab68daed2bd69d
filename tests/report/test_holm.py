import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from kvbench.report.stats.corrections import holm


@settings(max_examples=8)  # statsmodels takes a tenth of a second for each
@given(st.lists(st.floats(0, 1), min_size=1, max_size=31))
def test_holm_is_that_of_statsmodels(p: list[float]) -> None:
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist())


def test_holm_of_a_family_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_no_true_null_of_a_family_is_refused_more_often_than_asked() -> None:
    generator = np.random.default_rng(0)
    families = generator.random((4000, 13))
    assert np.mean([min(holm(family)) <= 0.05 for family in families]) == pytest.approx(0.05, abs=0.011)
