"""A score or a holder in a file of its own, `score=my_score.py`: its settings are the fields of the class in it."""

import hashlib
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from kvbench.support.errors import MissingFile, UserError
from kvbench.support.plugins import LOOSE, Item, Source, held_groups, items
from kvbench.support.whole_file import read_whole

SCORE = "kvbench.eviction.scores.score.Score"
HOLDER = "kvbench.models.decode.holder.Holder"
PLAIN = (bool, int, float, str, tuple, type(None))
"""Types of defaults that are settings; a field with another default keeps it."""


def bases() -> dict[str, str]:
    """Return the base of a file's class, by group and name: importing it would import torch with the settings."""
    return {"score": SCORE} | dict.fromkeys(held_groups(), HOLDER)


def is_python_file(name: str) -> bool:
    """Return whether a name, or a `_target_`, is a Python file."""
    return name.endswith(".py")


def loose_item(group: str, path: str) -> Item:
    """Return the file as an item of a group. Raises MissingFile, and UserError for a file without one class of it."""
    name = node_of(group, path)["name"]
    if (ours := items(group).get(name)) is not None:
        raise UserError(f"{path} names its {group} {name}, and {ours.source} has a {group} of that name: rename yours")
    return Item(group, name, Path(path).expanduser().resolve(), Source("kvbench", "", "", Path()))


def class_in(path: str, group: str = "score") -> Any:
    """Return the class of a group that a file has; names with _ first do not count. Raises MissingFile or UserError."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        setting = "score.path" if group == "score" else group
        raise MissingFile(f"no such file: {path}; {setting}=FILE.py names the Python file of a {group}")
    module = _load(file, read_whole(file))
    classes = [
        value
        for name, value in vars(module).items()
        if name[0] != "_" and isinstance(value, type) and value.__module__ == module.__name__
        if any(f"{base.__module__}.{base.__qualname__}" == bases()[group] for base in value.__mro__)
    ]
    base = bases()[group]
    if len(classes) != 1:
        names = ", ".join(each.__name__ for each in classes) or "none"
        raise UserError(f"{path} must define one {group}, a dataclass that derives from {base}: it has {names}")
    if not is_dataclass(classes[0]):
        raise UserError(f"{path}: {classes[0].__name__} is not a dataclass: make it one, its fields are the settings")
    return classes[0]


def node_of(group: str, path: str) -> dict[str, Any]:
    """Return the content that a YAML file of the class would have."""
    settings: dict[str, Any] = {"_target_": str(Path(path).expanduser().resolve()), "name": Path(path).stem}
    for field in fields(class_in(path, group)):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.init and default is MISSING and field.name != "name":
            settings[field.name] = "???"
        elif field.init and isinstance(default, PLAIN):
            settings[field.name] = list(default) if isinstance(default, tuple) else default
    return settings


@dataclass(frozen=True)
class _Content(SourceLoader):
    """Loads a module from the bytes of a file that were read, without Python's cache of compiled files: that knows an
    edit by size and time, which two edits within a second can share.
    """

    file: Path
    content: bytes

    def get_filename(self, fullname: str) -> str:
        return str(self.file)

    def get_data(self, path: str | bytes) -> bytes:
        return self.content


@cache
def _load(file: Path, content: bytes) -> ModuleType:
    """Return the module of a file; an edited file is another module. Raises UserError if it does not load."""
    name = LOOSE + hashlib.sha256(bytes(file) + b"\0" + content).hexdigest()[:16]
    loader = _Content(file, content)
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a loader of a file has a spec"
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the code of a user may raise anything
        del sys.modules[name]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise UserError(f"{file.name}{line} does not load: {type(error).__name__}: {text}") from None
    return module
