"""Settings that say on their fields what they mean and what they can be: lists, help and complaints read the fields."""

import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from kvbench.cli.main import main
from kvbench.cli.setting_help import NO_SETTINGS, help_of_part
from kvbench.config.compose import combinations
from kvbench.config.entries import content, options
from kvbench.config.overrides import parse
from kvbench.eviction.schedule import Schedule
from kvbench.models.loading.spec import ModelSpec
from kvbench.support.annotations import Help, Range, check_ranges, help_of
from kvbench.support.errors import UserError
from kvbench.support.plugins import items, own_sources


@dataclass(frozen=True)
class Base:
    width: Annotated[int, Help("pairs at once"), Range(1, 8)] = 4
    plain: int = 0


@dataclass(frozen=True)
class Derived(Base):
    most: Annotated[float | None, Range(0, 10)] = None


def test_fields_of_a_class_and_its_bases_say_what_they_mean() -> None:
    assert help_of(Derived) == {"width": "pairs at once"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (Derived(width=0), r"part\.width=0: allowed: 1 to 8 \(pairs at once\)$"),
        (Derived(most=10.5), r"part\.most=10\.5: allowed: 0 to 10, or null$"),
        (Derived(most=float("nan")), r"part\.most=nan: allowed: 0 to 10, or null$"),
    ],
)
def test_a_complaint_names_the_range_and_the_meaning_of_a_field(settings: Derived, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        check_ranges(settings, "part")
    check_ranges(Derived(width=8, most=0), "part")


@pytest.mark.parametrize("group", ["model", "launcher", "logger", "policy", "score", "probe"])
def test_files_hold_values_and_classes_say_what_each_setting_means(group: str) -> None:
    for path in (path for source in own_sources() for path in (source.conf / group).rglob("*.yaml")):
        settings = [line for line in path.read_text("utf-8").splitlines() if line.lstrip()[:2] not in ("- ", "# ")]
        assert [line for line in settings if " # " in line] == [], path
    for name in options(group):
        tree = content(items(group)[name])
        tree = tree[group] if group != "model" else combinations(parse([f"model={name}"]))[0]["model"]
        said = {*NO_SETTINGS, "root", "shape", "project", *help_of_part(group, tree)}
        assert set(tree) <= said, name


def test_lists_say_what_fields_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "hf", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    comments = {setting["key"]: setting["comment"] for setting in listed["settings"]}
    assert comments["model.max_batch"] == help_of(ModelSpec)["max_batch"] == "cells that decode together"
    assert main(["list", "settings"]) == 0
    shown = capsys.readouterr().out
    assert help_of(Schedule)["evict_after"].split(";")[0] in shown and "cells that decode together" in shown
