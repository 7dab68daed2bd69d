"""Made-up cases with schedules and repetitions against the contract written down a second time."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.extras.conformance.golden import Case, check
from kvbench.extras.conformance.tests.made_up import blockwise, decode, repeat


@pytest.mark.parametrize("make", [decode, blockwise, repeat], ids=lambda make: make.__name__)
@settings(max_examples=20, derandomize=True)
@given(seed=st.integers(0, 999))
def test_a_made_up_case_matches(make: Callable[[int], Case], seed: int) -> None:
    case = make(seed)
    verdict = check(case)
    assert verdict.problem is None, case.spec
