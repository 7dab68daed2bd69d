"""Where the repository is, its files of reference, and the code that is shipped."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"


def code() -> list[Path]:
    """List the Python files that a wheel holds: all of the package but the tests of extras."""
    files = sorted((ROOT / "kvbench").rglob("*.py"))
    return [file for file in files if "tests" not in file.relative_to(ROOT).parts and file.name != "conftest.py"]


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file, which is parsed once in a process."""
    return ast.parse(file.read_text("utf-8"))
