"""Golden cases against the defaults of the policy that they verify: what they set otherwise is written down."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from kvbench.config.entries import options
from kvbench.config.policy_parts import settings_of
from kvbench.eviction.policy import Policy
from kvbench.extras.conformance.golden.case import eviction_of, load
from scripts.document_methods import entry
from tests.composed import composed, needed
from tests.repository import GOLDEN

CHOICES = ("reduce", "pool", "group", "order", "heads", "layers", "layout", "positions", "variant", "state")
"""Settings that make a method. Sizes are left out: a case is small."""
HOSTS = {"criticalkv": "snapkv"}
"""Scores of methods_2026 whose cases run under the policy of another name."""


def chosen(value: Any) -> Any:
    """A setting without its sizes: of a part its kind."""
    value = value.kind if hasattr(value, "kind") else value.get("kind") if isinstance(value, dict) else value
    return list(value) if isinstance(value, tuple) else value


def arrays(path: Path) -> dict[str, Any]:
    """The choices of an `.npz` case. Without steps there is no state; a query head's cache has no group."""
    case = load(path)
    eviction = eviction_of(case)
    policy, left_out = eviction.policy, {"state"} if case.spec["kind"] == "prefill" else set()
    group = policy.group_of(eviction.score.group)
    if policy.layout == "query_heads" or group == eviction.score.group:
        left_out |= {"group"}
    if policy.pool is None or policy.layout == "query_heads":
        left_out |= {"order"}
    values = settings_of(policy)
    return {key: chosen(values[key]) for key in CHOICES if key not in left_out}


def written(path: Path) -> dict[str, Any]:
    """The choices of the cases of a `.json` file: what one of them sets, and `reduce` of all that have a window."""
    cases = json.loads(path.read_text("utf-8"))
    fields: dict[str, Any] = {}
    for case in cases if isinstance(cases, list) else ():
        given = case.get("policy", {})
        fields |= {key: chosen(given[key]) for key in CHOICES if key in given}
        if "window" in given:
            fields["reduce"] = given.get("reduce", Policy.reduce)
    return fields


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The policy, the name and the choices of every case that the file of a policy names, or that needs a host."""
    for policy in options("policy"):
        named = " ".join(entry("policy", policy).verified.split()).partition(";")[0].removeprefix("golden ")
        for name in named.split(", "):
            for path in GOLDEN.glob(f"*/{name}.npz"):
                yield policy, path.stem, arrays(path)
            if (path := GOLDEN / f"{name}.json").is_file():
                yield policy, name, written(path)
    for score, policy in HOSTS.items():
        yield policy, score, written(GOLDEN / "methods_2026" / f"{score}.json")


def test_a_case_has_the_choices_of_the_policy_that_it_verifies_or_says_which_it_changes() -> None:
    """As `policy=NAME protocol=paper`; tests/golden/changed.yaml names the others."""
    found: dict[str, dict[str, Any]] = {}
    for policy, case, choices in cases():
        usual = composed(f"policy={policy}", *needed("policy", policy))["policy"]
        if changed := {key: value for key, value in choices.items() if value != chosen(usual.get(key, value))}:
            found[f"{policy} {case}"] = changed
    assert found == yaml.safe_load((GOLDEN / "changed.yaml").read_text("utf-8"))
