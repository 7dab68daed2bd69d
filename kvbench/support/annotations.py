"""Meanings of settings as annotations of the fields of a dataclass: help, lists and complaints are made from them.

processes: Annotated[int | None, Help("null: one per GPU"), Range(1, 1024)] = None
"""

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from kvbench.support.errors import UserError


@dataclass(frozen=True)
class Help:
    """Meaning of a setting, in a few words; what stands for its value without a default, and the kind of its file."""

    text: str
    example: str = "VALUE"
    file: str = ""


@dataclass(frozen=True)
class Range:
    """The least and the most that a number can be."""

    least: int
    most: int


@cache
def help_of(target: type) -> dict[str, str]:
    """Return the meanings of the fields of a class; of a part under its name: `pool.size`."""
    texts: dict[str, str] = {}
    for name, hint in get_type_hints(target, include_extras=True).items():
        notes = [note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Help)]
        texts |= {name: note.text for note in notes}  # noqa: B035
        for part in _parts(hint):
            texts |= {f"{name}.{inner}": text for inner, text in help_of(part).items()} | texts
    return texts


def _parts(hint: Any) -> Iterator[type]:
    """Yield the dataclasses that a value of a field can be."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _parts(inner)


def check_ranges(settings: Any, group: str) -> None:
    """Raise UserError for the first number of a dataclass that is outside its range; null passes."""
    for name, hint in annotated(type(settings)):
        value = getattr(settings, name)
        for note in hint.__metadata__:
            if isinstance(note, Range) and isinstance(value, (int, float)) and not note.least <= value <= note.most:
                null = ", or null" if NoneType in get_args(hint.__origin__) else ""
                meaning = help_of(type(settings)).get(name, "")
                raise UserError(
                    f"{group}.{name}={value}: allowed: {note.least} to {note.most}{null}{meaning and f' ({meaning})'}"
                )


@cache
def annotated(target: type) -> list[tuple[str, Any]]:
    """Return the annotated fields of a class and its bases."""
    hints = get_type_hints(target, include_extras=True)
    return [(name, hint) for name, hint in hints.items() if hasattr(hint, "__metadata__")]
