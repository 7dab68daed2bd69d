"""From a part of a tree to an object: `_target_` names the class, pydantic checks and converts its fields."""

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from kvbench.config.compose import Tree, class_of, parts_with_kinds, step_parts, text_fields
from kvbench.config.objects import HOLDER, names_object, node_of_object, object_of
from kvbench.config.overrides import format_value
from kvbench.support.errors import UserError
from kvbench.support.plugins import held_groups, items
from kvbench.support.text import closest, printable

KINDS = {
    "policy": "kvbench.eviction.policy.Policy",
    "score": "kvbench.eviction.scores.score.Score",
    "task": "kvbench.tasks.task.Task",
    "model": "kvbench.models.loading.spec.ModelSpec",
}
"""What the class of a file must be. By name: a command about a server builds no policy, and imports no torch."""
OUTWARD = ("launcher", "logger", "results", "data.root")
"""Settings whose texts leave the process: as lines of batch scripts, options of programs, names of folders."""
COLUMNS = ("variant", "layout")
"""Fields of a policy that have a column of their own in every row."""
ALLOWED = {
    "policy.order": "[pool,group] or [group,pool]",
    "policy.pool": "null, or a kind and an odd size such as {kind:max,size:7}",
    "policy.heads": "the name of a kind, such as uniform",
    "policy.layers": "the name of a kind, such as uniform",
    "policy.window": "an integer such as 16, all, question, or a part such as {part:0.05,of:budget}",
    "policy.window_skips": "an integer such as 0, or template",
    "policy.recent": "an integer such as 16, question, or a part such as {part:0.05,of:budget}",
    "model.template_kwargs": "auto, or arguments of the chat template such as {enable_thinking:false}",
    "schedule": "its settings, such as schedule.evict_after=prompt",
}
"""What can be written where pydantic's own words say nothing to a user."""
WORDS = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
}
"""pydantic's words for a type, and ours."""


def build(group: str, node: Tree) -> Any:
    """Return an instance of the class that `_target_` names, its fields checked and converted by their annotations.

    A part with a `_target_` of its own, such as the host of a score, is built first. Raises UserError for a class that
    does not load or is none of the group, and for the first value that is not allowed.
    """
    target = class_of(group, node)
    if names_object(node["_target_"]) and node == node_of_object(node["_target_"]):
        return object_of(node["_target_"])
    values = {
        key: build(f"{group}.{key}", value) if isinstance(value, dict) and "_target_" in value else value
        for key, value in node.items()
        if key != "_target_"
    }
    built = _policy(target, values) if group == "policy" else validated(target, group, values)
    if base := HOLDER if group in held_groups() else KINDS.get(group):
        module, _, name = base.rpartition(".")
        if not isinstance(built, getattr(import_module(module), name)):
            item = items(group).get(built.name, f"{group} {built.name}")
            raise UserError(f"{item}: {node['_target_']} is not a {group}: derive it from {base}")
    return built


def label(group: str, node: Tree, usual: Tree, left_open: Tree) -> str:
    """Return the name of a policy or score, and every field that differs from what its file says (`usual`) or leaves
    open. Of a holder, which is a part of a policy's label, these are words of the command line, its budget in any case.
    """
    before, now = (_settings_of(group, build(group, each)) for each in (usual, node))
    changed = dict(_changed({}, left_open)) | dict(_changed(_of_same_kind(before, now), now))
    for part in step_parts():
        if kind := changed.pop(f"{part}.kind", ""):  # as on a command line, the kind first
            changed = {part: kind} | changed
    if group in held_groups():
        budget = {"budget": format_value(node["budget"])} if "budget" in node else {}
        settings = (f"{group}.{key}={value}" for key, value in (budget | changed).items())
        return " ".join((f"{group}={node['name']}", *settings))
    return " ".join((node["name"], *(f"{key}={value}" for key, value in changed.items() if key not in COLUMNS)))


def _policy(target: Any, values: Tree) -> Any:
    """Return a policy from its own settings and the settings of steps."""
    from kvbench.config.policy_parts import form_of, policy_of

    return policy_of(validated(form_of(target), "policy", values), target)


def _settings_of(group: str, built: Any) -> dict[str, Any]:
    """Return the settings of a part; a policy has the settings of steps too."""
    from kvbench.config.policy_parts import settings_of

    return settings_of(built) if group == "policy" else asdict(built)


def _of_same_kind(usual: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """`usual` with the defaults of the kinds of steps that there are now: a label names what differs from them."""
    from kvbench.config.policy_parts import usual_of_kind

    for part in step_parts():
        if part in now and now[part]["kind"] != usual[part]["kind"]:
            usual = usual | {part: usual_of_kind(part, now[part]["kind"]) | usual[part]}
    return usual


def _changed(usual: dict[str, Any], actual: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, now in actual.items():  # a part of another kind has other fields
        before = usual.get(key)
        if isinstance(now, dict):
            yield from _changed(before if isinstance(before, dict) else {}, now, f"{prefix}{key}.")
        elif before != now:
            yield f"{prefix}{key}", format_value(now).strip("[]")  # rich reads brackets as markup


def validated(target: Any, group: str, values: Any) -> Any:
    """Values as `target` has them. Raises UserError, in one line, for the first that is not allowed."""
    _check_integers(group, values)
    if group in OUTWARD:
        _check_one_line(group, values)
    if isinstance(values, dict) and is_dataclass(target):
        allowed, texts = [field.name for field in fields(target) if field.init], text_fields(target)
        for key in values:
            if key not in allowed:
                raise UserError(f"unknown setting {group}.{key}: {closest(key, allowed)}")
        values = dict(values)
        for key, value in values.items():
            if f"{group}.{key}" in parts_with_kinds() and isinstance(value, str):
                values[key] = {"kind": value}  # policy.heads=uniform is short for policy.heads.kind=uniform
            elif key in texts and isinstance(value, (int, float)) and not isinstance(value, bool):
                values[key] = str(value)  # task.era=2026 is a text
    try:
        built = _adapter(target).validate_python(values)
    except ValidationError as error:
        raise UserError(_complaint(target, group, values, error)) from None
    _check_parts(group, values if isinstance(values, dict) else {}, built)
    if isinstance(values, bool) and not isinstance(built, bool):
        raise UserError(f"{group}={format_value(values)}: allowed: an integer")
    return built


def _check_integers(name: str, value: Any) -> None:
    """Refuse integers that no column of a row holds."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"{name}={value}: allowed: integers from -2^63 to 2^63-1")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_integers(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_integers(name, inner)


def _check_one_line(name: str, value: Any) -> None:
    """Refuse texts with line ends and other control characters: in a batch script, such a line would run."""
    if isinstance(value, str) and printable(value) != value:
        raise UserError(f"{name}={value!r}: allowed: a text of one line without control characters")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_one_line(name, str(key))
            _check_one_line(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_one_line(name, inner)


def _check_parts(group: str, values: Tree, built: Any) -> None:
    """Refuse what pydantic lets pass: misspelt fields of parts, and `true` for a number."""
    for key, value in values.items():
        part = getattr(built, key)
        if _became_a_number(value, part):
            raise UserError(
                f"{group}.{key}={format_value(value)}: allowed: {ALLOWED.get(f'{group}.{key}', 'a number')}"
            )
        if isinstance(value, dict) and is_dataclass(part):
            allowed = [field.name for field in fields(part)]
            for name in value:
                if name not in allowed:
                    raise UserError(f"unknown setting {group}.{key}.{name}: {closest(name, allowed)}")
            _check_parts(f"{group}.{key}", value, part)


def _became_a_number(value: Any, built: Any) -> bool:
    """Return whether `true` or `false`, or one in a list, was read as something else."""
    if isinstance(value, (list, tuple)) and isinstance(built, (list, tuple)):
        return any(map(_became_a_number, value, built))
    return isinstance(value, bool) and not isinstance(built, bool)


@lru_cache
def _adapter(target: Any) -> TypeAdapter[Any]:
    return TypeAdapter(target)


def _complaint(target: Any, group: str, values: Any, error: ValidationError) -> str:
    """pydantic's first complaint, as `policy.window=abc: allowed: an integer`."""
    errors = error.errors()
    name = str(errors[0]["loc"][0]) if errors[0]["loc"] else ""
    part = values.get(name) if isinstance(values, dict) else None
    if isinstance(part, dict):
        members = get_args(get_type_hints(target).get(name))  # the classes that a part of a policy can be
        kinds = {member().kind: member for member in members if hasattr(member, "kind")}
        kind = part.get("kind", "")
        chosen = kinds.get(kind) if isinstance(kind, str) else None
        if kinds and chosen is None:
            is_split = isinstance(kind, str) and ":" in kind  # a shell makes words of {kind:think,ratio:0.5}
            quote = (
                f"; between quotes if it has settings, '{group}.{name}={{kind:NAME,SETTING:VALUE}}'" if is_split else ""
            )
            return f"{group}.{name}.kind={format_value(part.get('kind'))}: allowed: {', '.join(kinds)}{quote}"
        errors = [each for each in errors if chosen is None or chosen.__name__ in each["loc"]]
    first = next((each for each in errors if each["type"] == "float_parsing"), errors[0])  # a number may be an integer
    if first["type"] == "value_error":
        return str(first.get("ctx", {})["error"])
    places = map(str, first["loc"])  # of a union, pydantic names the member too
    members = ("int", "float", "str")
    names = (group, *(n for n in places if n not in members and not n.startswith("literal[") and not n[:1].isupper()))
    setting = ".".join(names[:2])
    of_step = "the name of a kind, such as drop" if setting in parts_with_kinds() else ""
    allowed = ALLOWED.get(setting, of_step)
    if setting in ("policy.order", "policy.window", "policy.window_skips", "policy.recent") or (
        allowed and first["type"] in ("dataclass_type", "missing", "dataclass_exact_type", "dict_type")
    ):
        return f"{setting}={format_value(values[names[1]] if names[1:] else values)}: allowed: {allowed}"
    message = first["msg"].partition(", unable to ")[0].replace("Input should be", "allowed:")
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    return f"{'.'.join(names)}={format_value(first['input'])}: {message}"
