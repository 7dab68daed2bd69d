"""Hash of Python code by its syntax trees, so that comments, docstrings and formatting do not count.

Nor does the place of a file: each statement at the top of a module is hashed alone, and an import from the same package
counts by its name only, or by what the function of that name does. Modules are read, not imported.
"""

import ast
import gc
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_SKIPPED = ("ctx", "kind", "type_comment")
"""Fields of a tree that follow from the others, or have no effect."""


class NoSource(Exception):
    """The source of a module cannot be read: it was installed without it, or typed into an interpreter."""


@dataclass(frozen=True)
class Statement:
    """A statement at the top of a module: its hash, the function that it defines, if it is one, and (module, name) of
    each import from its own package.
    """

    sha256: str
    function: str | None
    imports: tuple[tuple[str, str], ...]


def code_sha256(modules: Iterable[str], packages: Sequence[str] = ()) -> str:
    """Return the hash of what these modules do, in any order, and the functions that they import from `packages`.

    Raises NoSource.
    """
    lines = set[str]()
    for statement in (statement for module in modules for statement in statements(module)):
        imported = ((module, name) for module, name in statement.imports if module.startswith(tuple(packages)))
        functions = (_functions(module).get(name, "") for module, name in imported)
        lines.add(" ".join((statement.sha256, *functions)))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def closure(modules: Iterable[str], within: str | tuple[str, ...]) -> set[str]:
    """Return these modules and those that they import, directly or not, whose names begin so. Raises NoSource."""
    todo, reached = list(modules), set[str]()
    while todo:
        module = todo.pop()
        if module in reached:
            continue
        reached.add(module)
        for package, name in {pair for statement in statements(module) for pair in statement.imports}:
            target = f"{package}.{name}" if _is_module(f"{package}.{name}") else package
            if target.startswith(within):
                todo.append(target)
    return reached


def modules_in(package: str) -> list[str]:
    """Return the modules of an installed package and of the packages in it. Raises NoSource."""
    folder = Path(_file(package)).parent
    names = (path.relative_to(folder).with_suffix("").as_posix().replace("/", ".") for path in folder.rglob("*.py"))
    return sorted(f"{package}.{name}".removesuffix(".__init__") for name in names)


@cache
def statements(module: str) -> tuple[Statement, ...]:
    """Return the statements at the top of a module, as its file is when they are asked for first. Raises NoSource."""
    try:
        source = Path(_file(module)).read_bytes()
        package = module if _file(module).endswith("__init__.py") else module.rpartition(".")[0]
        with _no_collection():
            return tuple(_statements(ast.parse(source).body, package))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise NoSource(f"{module}: {error}") from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Search for no garbage, which trees are not: beside the objects of torch it takes as long as reading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _statements(body: Iterable[ast.stmt], package: str) -> Iterator[Statement]:
    for node in body:
        if _has_no_effect(node):
            continue
        parts = [node]
        if isinstance(node, ast.ImportFrom) and _own(node, package):
            parts = [ast.ImportFrom(node.module, [name], node.level) for name in node.names]
        for part in parts:
            texts, imports = [], []
            _write(part, package, texts, imports)
            function = part.name if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
            yield Statement(hashlib.sha256("\n".join(texts).encode()).hexdigest(), function, tuple(imports))


def _write(node: ast.AST, package: str, texts: list[str], imports: list[tuple[str, str]]) -> None:
    """Append a tree as text, the same in every version of Python, and the imports in it from the same package."""
    kind = type(node)
    texts.append(kind.__name__)
    if isinstance(node, ast.ImportFrom) and (origin := _own(node, package)):
        imports += [(origin, name.name) for name in node.names]
        texts += [f"{name.name} {name.asname}" for name in node.names]
        return
    for field in kind._fields:
        value = getattr(node, field, None)
        if (value is None and not isinstance(node, ast.Constant)) or value == [] or field in _SKIPPED:
            continue
        texts.append(field)
        for item in value if isinstance(value, list) else (value,):
            if not isinstance(item, ast.AST):
                texts.append(repr(item))
            elif not (isinstance(item, ast.stmt) and _has_no_effect(item)):
                _write(item, package, texts, imports)
    texts.append(")")


def _has_no_effect(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring, or there for type checkers only."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _own(node: ast.ImportFrom, package: str) -> str | None:
    """Return the module that an import is from, if it is of the same top package; else None."""
    if node.level:
        parents = package.split(".")[: len(package.split(".")) - node.level + 1]
        return ".".join([*parents, *filter(None, [node.module])])
    top = package.partition(".")[0]
    return node.module if node.module and node.module.partition(".")[0] == top else None


@cache
def _functions(module: str) -> dict[str, str]:
    """Return the hashes of the functions that a module defines, by name; none if it is no module."""
    if not _is_module(module):
        return {}
    return {statement.function: statement.sha256 for statement in statements(module) if statement.function is not None}


@cache
def _is_module(name: str) -> bool:
    try:
        return bool(_file(name))
    except NoSource:
        return False


@cache
def _file(module: str) -> str:
    """Return the file of a module, which is not imported; its package is. Raises NoSource."""
    loaded: Any = sys.modules.get(module)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
    else:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, AttributeError, ValueError):  # a class is no package
            spec = None
        file = spec.origin if spec is not None and spec.has_location else None
    if file is None or not file.endswith(".py"):
        raise NoSource(f"{module} has no source file")
    return file
