"""Meanings of settings as annotations of the fields of a dataclass: help, lists and complaints are made from them.

processes: Annotated[int | None, Means("null: one per GPU"), Range(1, 1024)] = None
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from kvbench.support.errors import UserError

REQUIRED = "???"
"""What stands for the value of a setting without a default, as in a settings file."""
PLAIN = (bool, int, float, str, tuple, dict, type(None))
"""Types of defaults that are settings; a field with another default keeps it."""


@dataclass(frozen=True)
class Means:
    """Meaning of a setting, in a few words."""

    text: str


@dataclass(frozen=True)
class Range:
    """The least and the most that a number can be."""

    least: int
    most: int


@cache
def meanings(target: type) -> dict[str, str]:
    """Return the meanings of the fields of a class; of a part under its name: `pool.size`."""
    texts: dict[str, str] = {}
    for name, hint in get_type_hints(target, include_extras=True).items():
        notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Means)]
        texts |= {name: note.text for note in notes}  # noqa: B035
        for part in _parts(hint):
            texts |= {f"{name}.{inner}": text for inner, text in meanings(part).items()} | texts
    return texts


def _parts(hint: Any) -> Iterator[type]:
    """The dataclasses that a value of a field can be."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _parts(inner)


@cache
def defaults(target: type) -> dict[str, Any]:
    """The settings of a dataclass and their defaults, as a settings file writes them; of a part its settings or kind.

    Left out are `name`, which each file has, defaults that no file can write, and fields that the class lists in
    `only_if_stated`: they are settings of the files that state them. Never change the result.
    """
    left_out = ("name", *getattr(target, "only_if_stated", ()))
    values = {field.name: _default(field) for field in fields(target) if field.init and field.name not in left_out}
    return {name: plain(value) for name, value in values.items() if isinstance(value, PLAIN)}


def plain(value: Any) -> Any:
    """A default as a settings file writes it: a list for a tuple."""
    return list(value) if isinstance(value, tuple) else value


def _default(field: "Field[Any]") -> Any:
    if field.default_factory is MISSING:
        return REQUIRED if field.default is MISSING else field.default
    part = field.default_factory()
    if not is_dataclass(part) or hasattr(part, "name"):  # what has a name is no part
        return part
    settings = defaults(type(part))  # type: ignore[arg-type]
    return settings["kind"] if [*settings] == ["kind"] else settings


def check_ranges(settings: Any, group: str) -> None:
    """Raise UserError for the first number of a dataclass that is outside its range; null passes."""
    for name, hint in _hints(type(settings)):
        value = getattr(settings, name)
        for note in hint.__metadata__:
            if isinstance(note, Range) and isinstance(value, (int, float)) and not note.least <= value <= note.most:
                null = ", or null" if NoneType in get_args(hint.__origin__) else ""
                meaning = meanings(type(settings)).get(name, "")
                raise UserError(
                    f"{group}.{name}={value}: allowed: {note.least} to {note.most}{null}{meaning and f' ({meaning})'}"
                )


@cache
def _hints(target: type) -> list[tuple[str, Any]]:
    """The annotated fields of a class and its bases."""
    hints = get_type_hints(target, include_extras=True)
    return [(name, hint) for name, hint in hints.items() if hasattr(hint, "__metadata__")]
