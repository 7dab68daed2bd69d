"""What the source of a class says is what the class says."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from kvbench.cli.list import GROUPS, NO_SETTINGS
from kvbench.config.compose import RUN
from kvbench.config.entries import content
from kvbench.support.annotations import help_of
from kvbench.support.noted import declared, defaults, noted
from kvbench.support.plugins import items


def targets(node: Any) -> Iterator[str]:
    """The classes that a part of a settings file names."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"]
        for inner in node.values():
            yield from targets(inner)


def test_the_source_says_what_the_class_says() -> None:
    groups = [group for group in GROUPS.values() if group not in NO_SETTINGS]
    ours = {name for group in groups for item in items(group).values() for name in targets(content(item))}
    assert len(ours) > 80
    for target in {*ours, RUN}:
        module, _, name = target.rpartition(".")
        kind = getattr(import_module(module), name)
        assert noted(target) == help_of(kind), target
        assert [*declared(target).items()] == [*defaults(kind).items()], target


def test_a_class_of_others_is_not_read() -> None:
    for target in ("kvbench_sample.scores.Mine", "kvbench.eviction.policy.Nobody", "os.path"):
        with pytest.raises(LookupError):
            noted(target)
