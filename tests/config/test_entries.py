"""Files of names: how their YAML is read, and which score a policy's file names."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.config.compose import combinations
from kvbench.config.entries import parsed
from kvbench.config.overrides import parse
from kvbench.support.errors import UserError
from tests.plugins import made_up

POLICY = "policy:\n  _target_: kvbench.eviction.policy.Policy\n  name: mine\n"


def test_numbers_are_those_of_yaml_1_2() -> None:
    assert parsed("{a: 1e-6, b: -2E3, c: 1.5, d: e3, e: 1e}") == {"a": 1e-6, "b": -2e3, "c": 1.5, "d": "e3", "e": "1e"}


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a plugin with a policy whose file begins with these lines."""

    def make(defaults: str) -> None:
        monkeypatch.delitem(sys.modules, "broken", raising=False)
        files = {"__init__.py": "", "conf/policy/mine.yaml": defaults + POLICY}
        monkeypatch.syspath_prepend(str(made_up(tmp_path, "broken", files)))

    return make


@pytest.mark.parametrize(
    ("defaults", "score"),
    [("", "attn"), ("defaults: [/score: lava]\n", "lava"), ("defaults: [_self_, /score: lava]\n", "lava")],
)
def test_a_policy_has_the_score_that_its_file_names(policy: Callable[[str], None], defaults: str, score: str) -> None:
    policy(defaults)
    assert combinations(parse(["policy=mine"]))[0]["score"]["name"] == score
    assert combinations(parse(["policy=mine", "score=cake"]))[0]["score"]["name"] == "cake"


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ("[/task: needle]", r"policy mine of plugin broken 1.0: .*defaults: .*: allowed: \[/score: NAME\]"),
        ("[/score: lva]", r"policy mine of plugin broken 1.0: .*: no score lva: did you mean lava\?"),
    ],
)
def test_a_policy_with_other_defaults_is_refused(policy: Callable[[str], None], defaults: str, message: str) -> None:
    policy(f"defaults: {defaults}\n")
    with pytest.raises(UserError, match=message):
        combinations(parse(["policy=mine"]))
