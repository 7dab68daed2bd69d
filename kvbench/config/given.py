"""Parts that users give beside files of `conf`: a class in a Python file, `score=my_score.py`, or an object of Python.

The fields of both are settings. A word names each object, as other words name files; its class is where it is: in a
module, a file, or a cell of a notebook.
"""

import hashlib
import os
import re
import sys
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kvbench.support.errors import MissingFile, UserError
from kvbench.support.noted import plain
from kvbench.support.plugins import LOOSE
from kvbench.support.whole_file import read_whole

MARK = "@"
"""What ends the name of an object in its word; a number follows, since several objects can have one name."""

_objects: dict[str, Any] = {}


def is_python_file(name: str) -> bool:
    """Return whether a name, or a `_target_`, is a Python file."""
    return name.endswith(".py")


def class_in(path: str, group: str, base: str) -> Any:
    """Return the class that a file has of a group, whose base has this dotted name; names with _ first do not count.

    Raises MissingFile, and UserError for a file that does not load, without such a class, or with several.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        setting = "score.path" if group == "score" else group
        raise MissingFile(f"no such file: {path}; {setting}=FILE.py names the Python file of a {group}")
    module = _load(file, read_whole(file))
    classes = [
        value
        for name, value in vars(module).items()
        if name[0] != "_" and isinstance(value, type) and value.__module__ == module.__name__
        if any(f"{each.__module__}.{each.__qualname__}" == base for each in value.__mro__)
    ]
    if len(classes) != 1:
        names = ", ".join(each.__name__ for each in classes) or "none"
        raise UserError(f"{path} must define one {group}, a dataclass that derives from {base}: it has {names}")
    kind = classes[0]
    if problem := fault_of(kind):
        raise UserError(f"{path}: {kind.__name__} {problem}")
    if "name" not in {field.name for field in fields(kind)}:
        raise UserError(f'{path}: add `name: str = "{file.stem}"` to {kind.__name__}: rows and tables show it')
    return kind


def fault_of(kind: type) -> str:
    """Say what a class lacks, whose fields are settings and whose objects name cells; nothing if it lacks nothing."""
    if not is_dataclass(kind):
        return "is not a dataclass: make it a @dataclass(frozen=True), its fields are the settings"
    return "is a dataclass that is not frozen: make it a @dataclass(frozen=True)" if kind.__hash__ is None else ""


@cache
def _load(file: Path, content: bytes) -> ModuleType:
    """Return the module of a file; an edited file is another module. Raises UserError if it does not load."""
    module = ModuleType(LOOSE + hashlib.sha256(bytes(file) + b"\0" + content).hexdigest()[:16])
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(content, str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:  # the code of a user may raise anything
        del sys.modules[module.__name__]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise UserError(f"{os.path.relpath(file)}{line} does not load: {type(error).__name__}: {text}") from None
    return module


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
