"""Scores, policies, holders and models that are Python objects: a word names each, as other words name files of `conf`.

The fields of an object are its settings. Its class is where it is: in a module, a file, or a cell of a notebook.
"""

import re
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from kvbench.support.errors import UserError
from kvbench.support.noted import plain

MARK = "@"
"""What ends the name of an object in its word; a number follows, since several objects can have one name."""

_objects: dict[str, Any] = {}


def word_of(group: str, value: Any) -> str:
    """Return the word that names an object, the same for equal ones. Raises UserError for a class whose objects its
    fields do not tell apart, and for one without a name.
    """
    name, kind = getattr(value, "name", None), type(value)
    if not is_dataclass(value) or kind.__hash__ is None:
        raise UserError(f"{group}={kind.__name__}(...): make the class a @dataclass(frozen=True)")
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{group}={kind.__name__}(...) has name={name!r}: allowed: a text, which rows and tables show")
    for word, other in _objects.items():
        if type(other) is kind and other == value:
            return word
    word = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}{MARK}{len(_objects)}"
    _objects[word] = value
    return word


def names_object(word: str) -> bool:
    """Return whether a word names an object."""
    return word in _objects


def object_of(word: str) -> Any:
    """Return the object that a word names."""
    return _objects[word]


def settings_of_object(word: str) -> dict[str, Any]:
    """Return what a settings file of the object would say."""
    value = _objects[word]
    values = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    parts = {name: asdict(part) if is_dataclass(part) else plain(part) for name, part in values.items()}  # type: ignore[arg-type]
    return {"_target_": word, **parts}
