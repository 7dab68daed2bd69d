"""Scores, policies, holders and models that are Python objects: a word names each, as other words name files of `conf`.

The fields of an object are its settings. Its class is where it is: in a module, a file, or a cell of a notebook.
"""

import re
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from kvbench.support.errors import UserError
from kvbench.support.plugins import Item, Source, held_groups

MARK = "@"
"""What ends the name of an object in its word; a number follows, since several objects can have one name."""
CLASSES = {
    "score": "kvbench.eviction.scores.score.Score",
    "policy": "kvbench.eviction.policy.Policy",
    "model": "kvbench.models.loading.spec.ModelSpec",
}
"""What an object of a group derives from, by name: importing it would import torch with the settings."""
HOLDER = "kvbench.models.decode.holder.Holder"
OPEN = "???"

_objects: dict[str, Any] = {}


def is_kind(group: str, kind: type) -> bool:
    """Return whether a class is one of a group."""
    wanted = HOLDER if group in held_groups() else CLASSES.get(group)
    return wanted in {f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__}


def is_object(group: str, value: Any) -> bool:
    """Return whether a value is an object of a group rather than a name."""
    return is_kind(group, type(value))


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


def item_of(group: str, word: str) -> Item | None:
    """Return the object as an item of its group; None in another group."""
    value = _objects[word]
    return Item(group, value.name, Path(word), Source("kvbench", "", "", Path())) if is_object(group, value) else None


def node_of_object(word: str) -> dict[str, Any]:
    """Return the content that a YAML file of the object would have."""
    named = _objects[word]
    values = {field.name: getattr(named, field.name) for field in fields(named) if field.init}
    return _node(word, values)


def usual_of(word: str) -> dict[str, Any]:
    """Return the defaults of its settings; `OPEN` for those without."""
    values: dict[str, Any] = {}
    for field in fields(_objects[word]):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.init:
            values[field.name] = OPEN if default is MISSING else default
    return _node(word, values | {"name": _objects[word].name})


def _node(word: str, values: dict[str, Any]) -> dict[str, Any]:
    plain = {key: asdict(value) if is_dataclass(value) else value for key, value in values.items()}  # type: ignore[arg-type]
    return {"_target_": word, **{key: list(value) if key == "accepts" else value for key, value in plain.items()}}
