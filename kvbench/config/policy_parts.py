"""Parts of policies that files name: how a budget is divided, and the steps that follow the scores.

`allocation/PART/KIND.yaml` is a kind of `policy.heads` or `policy.layers`.

`step/NAME.yaml` holds settings of a policy, `policy.FIELD`. `step/PART/KIND.yaml` is a kind of a part,
`policy.PART=KIND`, whose settings are `policy.PART.FIELD`; the kind is `drop` unless a command names another.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from typing import Any

from kvbench.config.entries import ALLOCATION, STEP, class_of, load_entry
from kvbench.config.overrides import format_value
from kvbench.config.validation import validated
from kvbench.eviction.allocation.allocation import UniformHeads, UniformLayers
from kvbench.eviction.policy import Policy
from kvbench.eviction.step import Drop, Kind, Step
from kvbench.support.errors import UserError
from kvbench.support.plugins import items


def _classes(group: str) -> dict[str, Any]:
    """Return the class of every file of a group by its name; the kinds of a part have its name first."""
    return _classes_of(group, tuple(sys.path))


@cache
def _classes_of(group: str, _: tuple[str, ...]) -> dict[str, Any]:
    """Cache by search path, as `items`."""
    return {name: class_of(group, load_entry(group, name)) for name in items(group)}


def kinds(group: str = STEP) -> dict[str, tuple[Any, ...]]:
    """Return the kinds of every part that files of a group name, the usual one first."""
    usual = {"heads": UniformHeads, "layers": UniformLayers}
    by_part: dict[str, dict[Any, None]] = {}
    for name, kind in _classes(group).items():
        if part := name.rpartition("/")[0]:
            by_part.setdefault(part, dict.fromkeys((usual.get(part, Drop),)))[kind] = None
    return {part: (*each,) for part, each in by_part.items()}


def _plain() -> tuple[type[Step], ...]:
    """Return the steps whose fields are settings of a policy."""
    return tuple(step for name, step in _classes(STEP).items() if "/" not in name)


def policy_from(target: type[Policy], settings: Mapping[str, Any]) -> Policy:
    """Return a policy with its steps, from all settings of a command line: its own, and the settings of steps.

    Raises UserError for settings that are not allowed.
    """
    own_settings, steps = dict(settings), list[Step]()
    for step in _plain():
        named = [each.name for each in fields(step) if each.name in own_settings]  # type: ignore[arg-type]
        steps.append(validated(step, "policy", {name: own_settings.pop(name) for name in named}))
    for part, each in (kinds(ALLOCATION) | kinds()).items():
        if part in own_settings:
            own_settings[part] = _of_kind(part, each, own_settings[part])
    steps += [own_settings.pop(part) for part in kinds() if part in own_settings]
    policy = validated(target, "policy", own_settings)
    return replace(policy, steps=(*policy.steps, *steps))


def _of_kind(part: str, kinds: Sequence[Any], value: Any) -> Any:
    """Return a part from `uniform`, short for {kind: uniform}, or from settings of which `kind` says the class."""
    if is_dataclass(value):  # of a plugin, and named by its `_target_`
        return value
    by_name = {each.kind: each for each in kinds}
    value = {"kind": value} if isinstance(value, str) else value
    if not isinstance(value, dict):
        usual = next(iter(by_name))
        raise UserError(f"policy.{part}={format_value(value)}: allowed: the name of a kind, such as {usual}")
    if "kind" not in value:  # the first that has most of its settings
        value = {"kind": max(kinds, key=lambda each: len(value.keys() & vars(each()))).kind} | value
    kind = value["kind"]
    if isinstance(kind, str) and kind in by_name:
        return validated(by_name[kind], f"policy.{part}", value)
    fix = ""
    if isinstance(kind, str) and ":" in kind:  # a shell makes words of {kind:think,ratio:0.5}
        fix = f"; between quotes if it has settings, 'policy.{part}={{kind:NAME,SETTING:VALUE}}'"
    raise UserError(f"policy.{part}.kind={format_value(kind)}: allowed: {', '.join(by_name)}{fix}")


def steps_of(settings: Mapping[str, Any]) -> tuple[Step, ...]:
    """Return the steps of these settings of a policy that do anything; settings of others are left out."""
    chosen = [settings[part] for part in kinds() if part in settings]
    for step in _plain():
        chosen.append(step(**{each.name: settings[each.name] for each in fields(step) if each.name in settings}))  # type: ignore[arg-type]
    return tuple(step for step in chosen if not step.idle)


def settings_of(policy: Policy) -> dict[str, Any]:
    """Return all settings of a policy and its steps, in the order in which labels name them."""
    own_settings = asdict(replace(policy, steps=()))
    del own_settings["steps"]
    by_class, added = {type(step): step for step in policy.steps}, dict[str, dict[str, Any]]()
    for step in (by_class.pop(each, None) or each() for each in _plain()):
        added.setdefault(step.after, {}).update(asdict(step))  # type: ignore[call-overload]
    for part, each in kinds().items():
        chosen = next((by_class.pop(kind) for kind in each if kind in by_class), Drop())
        added.setdefault(Kind.after, {})[part] = asdict(chosen)  # type: ignore[call-overload]
    values: dict[str, Any] = {}
    for name, value in own_settings.items():
        values |= {name: value} | added.get(name, {})
    for step in by_class.values():  # of no file
        values |= step.described()
    return values


def usual_of_kind(part: str, kind: str) -> dict[str, Any]:
    """Return the default settings of a kind."""
    (chosen,) = (each() for each in kinds()[part] if each.kind == kind)
    return asdict(chosen)  # type: ignore[call-overload]
