"""A case whose spec or arrays say what kvbench does not know fails, and says why."""

from typing import Any

import numpy as np
import pytest

from kvbench.extras.conformance.golden import Case, check
from kvbench.extras.conformance.golden.case import AXES, REQUIRED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "decode"}, "field schedule is missing in a case of kind decode"),
        ({"heads": {"kind": "sorted"}}, "heads.kind 'sorted' is not supported; allowed: uniform, "),
        ({"group": "median"}, "group 'median' is not supported"),
        ({"score": {"name": "no_such_score", "params": {}}}, "score 'no_such_score' is not supported; allowed: "),
        ({"score": {"name": "attn", "params": {"size": 1}}}, "parameter size of score attn is not supported"),
        ({"recent": 65}, "cannot hold the 65 protected tokens"),
        ({"temperature": 2}, "field temperature is not supported"),
        ({"schedule": {"steps": 3, "state": "none"}}, "field schedule is not supported in a case of kind prefill"),
        ({"heads": {"kind": "uniform", "alpha": 0.5}}, "heads {'kind': 'uniform', 'alpha': 0.5} is not supported"),
        ({"heads": {"kind": "mix"}}, "allowed: an object of kind, alpha and nothing else"),
        ({"heads": {"kind": "mix", "alpha": "0.2"}}, "heads.alpha '0.2' is not supported; allowed: a number"),
        ({"layers": {"kind": "pyramid", "beta": 0}}, "policy.layers.beta=0: "),
        ({"heads": "uniform"}, "heads 'uniform' is not supported"),
        ({"pool": {"kind": "max", "size": 7, "stride": 2}}, "allowed: an object of kind, size and nothing else"),
        ({"order": 3}, "policy.order=3 is not allowed"),
        ({"sink": 1.5}, "sink 1.5 is not supported; allowed: an integer, 0 or more"),
        ({"sink": "4"}, "sink '4' is not supported"),
        ({"sink": True}, "sink True is not supported"),
        ({"recent": -1}, "recent -1 is not supported"),
        ({"window": -16}, "window -16 is not supported; allowed: all, or an integer, 1 or more"),
        ({"total_pairs": 385}, "total_pairs is 385, but the expected lengths sum to 384"),
        (
            {"score_tolerance": float("nan")},
            "score_tolerance nan is not allowed; allowed: a number above 0 and below 1",
        ),
        ({"score_floor": float("inf")}, "score_floor inf is not allowed"),
        ({"tie_tolerance": "wide"}, "tie_tolerance 'wide' is not allowed"),
        ({"tie_tolerance": 1e9}, "tie_tolerance 1000000000.0 is not allowed"),
        ({"variant": "x"}, "variant 'x' is not supported; allowed: paper, official"),
        ({"name": None}, "name None is not allowed"),
        ({"score": "attn"}, "score 'attn' is not supported"),
        ({"score": {"name": "attn"}}, "allowed: an object of name, params and nothing else"),
        ({"score": {"name": ["attn"], "params": {}}}, "allowed: a name and an object of parameters"),
        ({"score": {"name": "attn", "params": {"_target_": "builtins.print"}}}, "parameter _target_ of score attn"),
    ],
    ids=str,
)
def test_a_wrong_spec_fails_and_says_why(case: Case, changes: dict[str, Any], reason: str) -> None:
    case.spec.update(changes)
    problem = check(case).problem
    assert problem is not None and problem.startswith("cannot be run: ") and reason in problem


def test_every_field_must_be_there(case: Case) -> None:
    for field in REQUIRED[1:]:  # without its name
        spec = {name: value for name, value in case.spec.items() if name != field}
        assert check(Case(spec, case.arrays)).problem == f"cannot be run: field {field} is missing"


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("size", [7, "3"])
def test_a_shape_that_is_not_that_of_the_arrays_fails(case: Case, axis: str, size: Any) -> None:
    case.spec["shape"][axis] = size
    problem = check(case).problem
    assert problem is not None and "shape" in problem


@pytest.mark.parametrize("name", ["query", "key", "value", "scores", "lengths", "kept"])
def test_every_array_must_be_there_in_its_shape_and_type(case: Case, name: str) -> None:
    good = case.arrays.pop(name)
    assert check(case).problem == f"cannot be run: array {name} is missing"
    for bad, reason in (
        (good[:, :1], "has shape"),
        (good[None], "has shape"),
        (good.astype(np.float16), "is float16, expected"),
    ):
        case.arrays[name] = bad
        problem = check(case).problem
        assert problem is not None and f"array {name} {reason}" in problem
    case.arrays[name] = good
    assert check(case).problem is None
    case.arrays["key_repeat"] = good
    problem = check(case).problem
    assert problem is not None and "array key_repeat is not supported" in problem


@pytest.mark.parametrize(("name", "value"), [("query", np.nan), ("key", np.inf), ("value", np.nan), ("scores", np.inf)])
def test_numbers_that_are_none_fail(case: Case, name: str, value: float) -> None:
    """Values play no part in this score, and an expected score of inf would allow anything."""
    case.arrays[name][0, 0, 100] = value
    problem = check(case).problem
    assert problem is not None and f"array {name} holds" in problem
