"""A case whose spec or arrays say what kvbench does not know fails, and says why."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.cli.main import run_command
from kvbench.extras.conformance.golden import Case, check
from kvbench.extras.conformance.golden.case import AXES, REQUIRED
from kvbench.extras.conformance.tests.cases import save


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "decode"),
        ("window", "none"),
        ("heads", {"kind": "sorted"}),
        ("layers", {"kind": "staircase"}),
        ("group", "median"),
        ("score", {"name": "no_such_score", "params": {}}),
        ("score", {"name": "attn", "params": {"no_such_parameter": 1}}),
        ("recent", 65),
    ],
    ids=str,
)
def test_what_cannot_be_run_fails_and_says_why(case: Case, field: str, value: Any) -> None:
    case.spec[field] = value
    problem = check(case).problem
    assert problem is not None and problem.startswith("cannot be run: ")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"temperature": 2}, "field temperature is not supported"),
        ({"schedule": {"steps": 3, "state": "none"}}, "field schedule is not supported in a case of kind prefill"),
        ({"heads": {"kind": "uniform", "alpha": 0.5}}, "heads {'kind': 'uniform', 'alpha': 0.5} is not supported"),
        ({"heads": {"kind": "mix"}}, "allowed: an object of kind, alpha and nothing else"),
        ({"heads": {"kind": "mix", "alpha": "0.2"}}, "heads.alpha '0.2' is not supported; allowed: a number"),
        ({"heads": {"kind": "mix", "alpha": 1.5}}, "policy.heads.alpha=1.5: "),
        ({"heads": {"kind": "safeguard", "alpha": float("nan")}}, "policy.heads.alpha=nan: "),
        ({"layers": {"kind": "pyramid", "beta": 0}}, "policy.layers.beta=0: "),
        ({"layers": {"kind": "preference", "tau1": 1, "tau2": 0}}, "policy.layers.tau2=0: "),
        ({"heads": "uniform"}, "heads 'uniform' is not supported"),
        ({"layers": {"kind": "uniform", "beta": 20}}, "layers {'kind': 'uniform', 'beta': 20} is not supported"),
        ({"pool": {"kind": "max", "size": 7, "stride": 2}}, "allowed: an object of kind, size and nothing else"),
        ({"pool": {"kind": "max"}}, "allowed: an object of kind, size and nothing else"),
        ({"pool": {"kind": "max", "size": 4}}, "pool.size=4 has no middle"),
        ({"order": ["pool", "pool"]}, "policy.order=[pool,pool] is not allowed"),
        ({"order": 3}, "policy.order=3 is not allowed"),
        ({"sink": 1.5}, "sink 1.5 is not supported; allowed: an integer, 0 or more"),
        ({"sink": "4"}, "sink '4' is not supported"),
        ({"sink": True}, "sink True is not supported"),
        ({"recent": -1}, "recent -1 is not supported"),
        ({"window": -16}, "window -16 is not supported; allowed: all, or an integer, 1 or more"),
        ({"budget_tokens": 64.0}, "budget_tokens 64.0 is not supported"),
        ({"total_pairs": 385}, "total_pairs is 385, but the expected lengths sum to 384"),
        (
            {"score_tolerance": float("nan")},
            "score_tolerance nan is not allowed; allowed: a number above 0 and below 1",
        ),
        ({"score_tolerance": -1e-5}, "score_tolerance -1e-05 is not allowed"),
        ({"score_tolerance": 0}, "score_tolerance 0 is not allowed"),
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


def test_a_pool_that_is_none_fails(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case.spec["pool"] = {"kind": "median", "size": 7}
    assert run_command("conform", [str(save(case, tmp_path / "case.npz"))]) == 5
    assert "FAIL  snapkv_group_then_pool: " in capsys.readouterr().out


@pytest.mark.parametrize("field", [field for field in REQUIRED if field != "name"])
def test_every_field_must_be_there(case: Case, field: str) -> None:
    del case.spec[field]
    assert check(case).problem == f"cannot be run: field {field} is missing"


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("size", [1, 7, 0, "3", None])
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
