"""Parts of policies that files name: how a budget is divided, and the steps that follow the scores.

`allocation/PART/KIND.yaml` is a kind of `policy.heads` or `policy.layers`.

`step/NAME.yaml` holds settings of a policy, `policy.FIELD`. `step/PART/KIND.yaml` is a kind of a part,
`policy.PART=KIND`, whose settings are `policy.PART.FIELD`; the kind is `drop` unless a command names another.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, field, fields, make_dataclass, replace
from functools import cache
from typing import Any, Union, get_type_hints

from kvbench.config.compose import ALLOCATION, STEP, class_of, content
from kvbench.eviction.allocation.base import Heads, Layers, UniformHeads, UniformLayers
from kvbench.eviction.policy import Policy
from kvbench.eviction.step import Drop, Kind, Step
from kvbench.support.plugins import items


def classes(group: str = STEP) -> dict[str, Any]:
    """Return the class of every file of a group by its name; the kinds of a part have its name first."""
    return _classes(group, tuple(sys.path))


@cache
def _classes(group: str, _: tuple[str, ...]) -> dict[str, Any]:
    """Cache by search path, as `items`."""
    return {name: class_of(group, content(item)) for name, item in items(group).items()}


def allocations() -> dict[str, tuple[Any, ...]]:
    """Return the kinds of `heads` and of `layers`, the even one first."""
    heads, layers = dict.fromkeys((UniformHeads,)), dict.fromkeys((UniformLayers,))
    for name, kind in classes(ALLOCATION).items():
        (heads if name.startswith("heads/") else layers)[kind] = None
    return {"heads": (*heads,), "layers": (*layers,)}


def kinds() -> dict[str, tuple[type[Kind], ...]]:
    """Return the kinds of every part that steps add, `drop` first."""
    by_part: dict[str, tuple[type[Kind], ...]] = {}
    for name, kind in classes().items():
        if part := name.rpartition("/")[0]:
            by_part[part] = (*by_part.get(part, (Drop,)), kind)
    return by_part


def plain() -> tuple[type[Step], ...]:
    """Return the steps whose fields are settings of a policy."""
    return tuple(step for name, step in classes().items() if "/" not in name)


def form_of(target: type[Policy]) -> type[Policy]:
    """Return a policy whose fields are all settings of a command line: its own, and the settings of steps."""
    return _form_of(target, tuple(sys.path))


@cache
def _form_of(target: type[Policy], _: tuple[str, ...]) -> type[Policy]:
    """Cache by search path, as `items`."""
    by_part = {part: (*each, Heads if part == "heads" else Layers) for part, each in allocations().items()} | kinds()
    added: list[Any] = [(part, Union[each], field(default_factory=each[0])) for part, each in by_part.items()]  # noqa: UP007
    for step in plain():
        hints = get_type_hints(step, include_extras=True)
        added += [(each.name, hints[each.name], field(default=each.default)) for each in fields(step)]  # type: ignore[arg-type]
    place = {"__module__": target.__module__}
    return make_dataclass(target.__name__, added, bases=(target,), frozen=True, namespace=place)


def policy_of(form: Policy, target: type[Policy]) -> Policy:
    """Return a policy with its steps, from all settings. Raises UserError for settings of a step that are not
    allowed.
    """
    own: dict[str, Any] = {each.name: getattr(form, each.name) for each in fields(target)}
    own["steps"] = (*form.steps, *steps_of(vars(form)))
    return target(**own)


def steps_of(settings: Mapping[str, Any]) -> tuple[Step, ...]:
    """Return the steps of these settings of a policy that do anything; settings of others are left out."""
    chosen = [settings[part] for part in kinds() if part in settings]
    for step in plain():
        chosen.append(step(**{each.name: settings[each.name] for each in fields(step) if each.name in settings}))  # type: ignore[arg-type]
    return tuple(step for step in chosen if not step.idle)


def settings_of(policy: Policy) -> dict[str, Any]:
    """Return all settings of a policy and its steps, in the order in which labels name them."""
    own = asdict(replace(policy, steps=()))
    del own["steps"]
    by_class, added = {type(step): step for step in policy.steps}, dict[str, dict[str, Any]]()
    for step in (by_class.pop(each, None) or each() for each in plain()):
        added.setdefault(step.after, {}).update(asdict(step))  # type: ignore[call-overload]
    for part, each in kinds().items():
        chosen = next((by_class.pop(kind) for kind in each if kind in by_class), Drop())
        added.setdefault(Kind.after, {})[part] = asdict(chosen)  # type: ignore[call-overload]
    values: dict[str, Any] = {}
    for name, value in own.items():
        values |= {name: value} | added.get(name, {})
    for step in by_class.values():  # of no file
        values |= step.described()
    return values


def usual_of_kind(part: str, kind: str) -> dict[str, Any]:
    """Return the default settings of a kind."""
    (chosen,) = (each() for each in kinds()[part] if each().kind == kind)
    return asdict(chosen)  # type: ignore[call-overload]
