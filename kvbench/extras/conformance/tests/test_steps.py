"""Cases of kind `decode` and `blockwise`: every array of every cut is looked at."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvbench.extras.conformance.golden import Case, check, load
from tests.repository import GOLDEN

FOLDER = GOLDEN / "eviction"
KINDS = {"decode": "obcache_value_decode", "blockwise": "blockwise_h2o"}


@pytest.fixture(params=list(KINDS.values()))
def case(request: pytest.FixtureRequest) -> Case:
    """One of each kind, both with a running score."""
    return load(FOLDER / f"{request.param}.npz")


def flip_position(case: Case) -> None:
    case.arrays["kept_positions"][-1, 1, 1, 5] += 1


def flip_length(case: Case) -> None:
    case.arrays["step_lengths"][3, 0, 1] -= 1


def flip_score(case: Case) -> None:
    """Four times the tolerance."""
    scores = case.arrays["step_scores"][2, 1, 0]
    scores[np.nanargmax(scores)] *= 1 + 4e-5


def flip_sum(case: Case) -> None:
    case.arrays["accumulator"][-1, 0, 1, 0] *= 1 + 4e-5


def flip_last_query(case: Case) -> None:
    """Of the token that is read last."""
    name = "query_step" if "query_step" in case.arrays else "query"
    case.arrays[name].view(np.uint32)[(-1, *(0,) * (case.arrays[name].ndim - 3), -1, 0)] ^= 1 << 31


@pytest.mark.parametrize(
    "flip", [flip_position, flip_length, flip_score, flip_sum, flip_last_query], ids=lambda flip: flip.__name__
)
def test_whatever_is_changed_fails(case: Case, flip: Callable[[Case], None]) -> None:
    assert check(case).problem is None
    flip(case)
    assert check(case).problem is not None


def test_the_last_cut_of_a_blockwise_case_is_looked_at() -> None:
    for name in ("scores", "kept"):
        case = load(FOLDER / "blockwise_h2o.npz")
        case.arrays[name][0, 0, 120:] = 0
        problem = check(case).problem
        assert problem is not None and problem.startswith(name)


@pytest.mark.parametrize("name", ["kept_positions", "step_lengths", "step_scores", "accumulator"])
def test_every_array_must_be_there_in_its_shape(case: Case, name: str) -> None:
    good = case.arrays.pop(name)
    assert check(case).problem == f"cannot be run: array {name} is missing"
    for bad, reason in (
        (good[:-1], "has shape"),
        (good[None], "has shape"),
        (np.nan_to_num(good).astype(np.int8), "is int8"),
    ):
        case.arrays[name] = bad
        problem = check(case).problem
        assert problem is not None and f"array {name} {reason}" in problem


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (None, "schedule None is not supported"),
        ({"state": "accumulate"}, "allowed: an object of"),
        ({"steps": 0, "block": 0, "state": "accumulate"}, "allowed: an object of"),
        ({"steps": 12, "state": "accumulate", "every": 2}, "allowed: an object of"),
        ({"steps": 12, "state": "forget"}, "policy.state=forget is not allowed"),
        ({"steps": 12, "state": "accumulate", "slot_order": "random"}, "policy.slot_order=random is not allowed"),
        ({"steps": 0, "state": "accumulate"}, "schedule.steps 0 is not supported"),
        ({"steps": 11, "state": "accumulate"}, "array kept_positions has shape [12, 2, 8, 32], expected [11, 2, 8, *]"),
    ],
    ids=str,
)
def test_a_schedule_that_is_none_fails(schedule: Any, reason: str) -> None:
    case = load(FOLDER / f"{KINDS['decode']}.npz")
    case.spec["schedule"] = schedule
    problem = check(case).problem
    assert problem is not None and reason in problem
