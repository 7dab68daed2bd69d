"""Cases with schedules and repetitions, made up and golden, against the contract written down a second time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.extras.conformance.golden import Case, check, load
from kvbench.extras.conformance.tests.cases import CASES
from kvbench.extras.conformance.tests.made_up import blockwise, decode, repeat
from kvbench.extras.conformance.tests.naive_repeat import repeated
from kvbench.extras.conformance.tests.naive_steps import by_blocks, decoded

WRITINGS = {"decode": decoded, "blockwise": by_blocks, "prefill": repeated}


@pytest.mark.parametrize("make", [decode, blockwise, repeat], ids=lambda make: make.__name__)
@settings(max_examples=20, derandomize=True)
@given(seed=st.integers(0, 999))
def test_a_made_up_case_matches(make: Callable[[int], Case], seed: int) -> None:
    case = make(seed)
    verdict = check(case)
    assert verdict.problem is None, case.spec


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_second_writing_agrees_with_the_golden_cases(path: Path) -> None:
    case = load(path)
    if case.spec["kind"] == "prefill" and "probe" not in case.spec["score"]["params"]:
        return  # compared in test_naive.py
    for name, array in WRITINGS[case.spec["kind"]](case.spec, case.arrays).items():
        assert array.shape == case.arrays[name].shape, name
        assert np.allclose(array, case.arrays[name], rtol=1e-9, atol=1e-12, equal_nan=True), name
