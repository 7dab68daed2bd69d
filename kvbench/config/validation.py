"""Settings as a class has them: pydantic checks and converts, and one line says what is not allowed."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kvbench.config.entries import origin, text_fields
from kvbench.config.overrides import format_value
from kvbench.support.errors import UserError
from kvbench.support.text import closest, printable

OUTWARD = ("launcher", "logger", "results", "data")
"""Settings whose texts leave the process: as lines of batch scripts, options of programs, names of folders."""
ALLOWED = {
    "policy.order": "[pool,group] or [group,pool]",
    "policy.pool": "null, or a kind and an odd size such as {kind:max,size:7}",
    "policy.window": "an integer such as 16, all, question, or a part such as {part:0.05,of:budget}",
    "policy.window_skips": "an integer such as 0, or template",
    "policy.recent": "an integer such as 16, question, or a part such as {part:0.05,of:budget}",
    "model.template_kwargs": "auto, or arguments of the chat template such as {enable_thinking:false}",
    "schedule": "its settings, such as schedule.evict_after=prompt",
    "data": "data.root=FOLDER, such as data.root=/shared/data",
    "data.root": "a folder, such as /shared/data, or null",
    "results": "results.dir=FOLDER, results.kept=none|lengths|positions",
    "results.dir": "a folder, such as results/runs",
    "seed": "an integer",
}
"""What can be written where pydantic's own words say nothing to a user."""
WORDS = {
    "a valid integer": "an integer",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
}
"""pydantic's words for a type, and ours."""


def validated(target: Any, name: str, values: Any) -> Any:
    """Return values as `target` has them. Raises UserError, in one line, for the first that is not allowed."""
    for setting, value in _leaves(name, values):
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(f"{setting}={value}: allowed: integers from -2^63 to 2^63-1")  # as columns of rows hold
        if name in OUTWARD and isinstance(value, str) and printable(value) != value:
            raise UserError(f"{setting}={value!r}: allowed: a text of one line without control characters")
    if isinstance(values, dict) and is_dataclass(target):
        _check_names(target, name, values)
        texts = text_fields(target)
        values = {key: _as_text(value) if key in texts else value for key, value in values.items()}
    try:
        built = _adapter(target).validate_python(values)
    except ValidationError as error:
        raise UserError(_complaint(name, values, error)) from None
    _check_parts(name, values, built)
    return built


@lru_cache
def _adapter(target: Any) -> TypeAdapter[Any]:
    return TypeAdapter(target)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values inside a setting with their full names, and the names themselves."""
    match value:
        case dict():
            for key, inner in value.items():
                yield name, str(key)
                yield from _leaves(f"{name}.{key}", inner)
        case list() | tuple():
            for inner in value:
                yield from _leaves(name, inner)
        case _:
            yield name, value


def _as_text(value: Any) -> Any:
    """Return a number as a text, as for task.era=2026."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _check_names(target: Any, name: str, values: dict[str, Any]) -> None:
    allowed = [field.name for field in fields(target) if field.init]
    for key in values:
        if key not in allowed:
            raise UserError(f"{origin(name, values, key)}unknown setting {name}.{key}: {closest(key, allowed)}")


def _check_parts(name: str, value: Any, built: Any) -> None:
    """Refuse what pydantic lets pass: misspelt fields of parts, and `true` for a number."""
    if isinstance(value, bool) and not isinstance(built, bool):
        raise UserError(f"{name}={format_value(value)}: allowed: {ALLOWED.get(name, 'a number')}")
    if isinstance(value, (list, tuple)) and isinstance(built, (list, tuple)):
        for each, made in zip(value, built, strict=False):
            _check_parts(name, each, made)
    if isinstance(value, dict) and is_dataclass(built):
        _check_names(built, name, value)
        for key, inner in value.items():
            _check_parts(f"{name}.{key}", inner, getattr(built, key))


def _complaint(group: str, values: Any, error: ValidationError) -> str:
    """pydantic's first complaint, as `policy.window=abc: allowed: an integer`."""
    errors = error.errors()
    first = next((each for each in errors if each["type"] == "float_parsing"), errors[0])  # a number may be an integer
    if first["type"] == "value_error":
        return str(first.get("ctx", {})["error"])
    names = [group]
    for place in map(str, first["loc"]):  # members of a union and numbers of a list are places too
        if place not in ("int", "float", "str") and place.isidentifier() and not place[0].isupper():
            names.append(place)
    setting, name = ".".join(names), ".".join(names[:2])
    if (allowed := ALLOWED.get(name)) and (setting == name or first["type"] == "missing"):
        return f"{name}={format_value(values[names[1]] if names[1:] else values)}: allowed: {allowed}"
    message = first["msg"].partition(", unable to ")[0].replace("Input should be", "allowed:")
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    return f"{setting}={format_value(first['input'])}: {message}"
