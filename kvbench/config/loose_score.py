"""A score in a file of its own, `score.path=my_score.py`: its settings are the fields of the class in it."""

from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from kvbench.support.errors import UserError
from kvbench.support.loose import SUFFIX, load_file
from kvbench.support.plugins import Item, Source, items

SCORE = "kvbench.eviction.scores.score.Score"
"""What a score derives from, by name: importing it would import torch with the settings."""
PLAIN = (bool, int, float, str, tuple, type(None))
"""Types of defaults that are settings; a field with another default keeps it."""


def is_loose(name: str) -> bool:
    """Whether the name of a score, or a `_target_`, is a Python file."""
    return name.endswith(SUFFIX)


def loose_item(path: str) -> Item:
    """The file as an item of the group score. Raises MissingFile, and UserError for a file without one score."""
    name = node_of(path)["name"]
    if (ours := items("score").get(name)) is not None:
        raise UserError(f"{path} names its score {name}, and {ours.source} has a score of that name: rename yours")
    return Item("score", name, Path(path).expanduser().resolve(), Source("kvbench", "", "", Path()))


def class_in(path: str) -> Any:
    """The one score that a file defines; names that begin with _ do not count."""
    module = load_file(path)
    scores = [
        value
        for name, value in vars(module).items()
        if name[0] != "_" and isinstance(value, type) and value.__module__ == module.__name__ and _is_score(value)
    ]
    if len(scores) != 1:
        names = ", ".join(score.__name__ for score in scores) or "none"
        raise UserError(f"{path} must define one score, a dataclass that derives from {SCORE}: it has {names}")
    if not is_dataclass(scores[0]):
        raise UserError(f"{path}: {scores[0].__name__} is not a dataclass: make it one, its fields are the settings")
    return scores[0]


def _is_score(kind: type) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" == SCORE for base in kind.__mro__)


def node_of(path: str) -> dict[str, Any]:
    """What the YAML file of the score would say."""
    settings: dict[str, Any] = {"_target_": str(Path(path).expanduser().resolve()), "name": Path(path).stem}
    for field in fields(class_in(path)):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.init and default is MISSING and field.name != "name":
            settings[field.name] = "???"
        elif field.init and isinstance(default, PLAIN):
            settings[field.name] = list(default) if isinstance(default, tuple) else default
    return settings
