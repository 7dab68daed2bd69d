"""The class in a Python file of a user: `score=my_score.py`. Its fields are settings."""

import hashlib
import sys
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kvbench.support.errors import MissingFile, UserError
from kvbench.support.plugins import LOOSE
from kvbench.support.whole_file import read_whole


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
    if not is_dataclass(classes[0]):
        raise UserError(f"{path}: {classes[0].__name__} is not a dataclass: make it one, its fields are the settings")
    return classes[0]


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
        raise UserError(f"{file.name}{line} does not load: {type(error).__name__}: {text}") from None
    return module
