"""Python files named on the command line, without a package: loaded by path, one module for each content."""

import hashlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from kvbench.support.errors import MissingFile, UserError

PREFIX = "kvbench_loose_"
"""How the names of their modules begin."""
SUFFIX = ".py"


def load_file(path: str) -> ModuleType:
    """The module of a file; an edited file is another module. Raises MissingFile, and UserError if it does not load."""
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise MissingFile(f"no such file: {path}; score.path=FILE.py names the Python file of a score")
    return _load(file, file.read_bytes())


@cache
def _load(file: Path, content: bytes) -> ModuleType:
    name = PREFIX + hashlib.sha256(bytes(file) + b"\0" + content).hexdigest()[:16]
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        exec(compile(content, str(file), "exec"), module.__dict__)
    except Exception as error:  # the code of a user may raise anything
        del sys.modules[name]
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
        raise UserError(f"{file.name}{line} does not load: {type(error).__name__}: {text}") from None
    return module
