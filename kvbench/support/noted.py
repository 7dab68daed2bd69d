"""Meanings of settings from the source of our classes, read and not imported: lists and help need no torch."""

import ast
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kvbench.support.plugins import OURS

REQUIRED = "???"
"""What stands for the value of a setting without a default, as in a settings file."""
PLAIN = (bool, int, float, str, tuple, dict, type(None))
"""Types of defaults that are settings; a field with another default keeps it."""
ROOT = Path(__file__).parents[1]
UNREAD = object()
"""A default that no settings file writes."""


class Place(NamedTuple):
    """A class, or the type that a name stands for, in the module that defines it."""

    module: str
    node: Any


@cache
def noted(target: str) -> dict[str, str]:
    """Return `kvbench.support.annotations.help_of` of the class at a dotted name.

    Raises LookupError for a class that is not one of ours.
    """
    texts: dict[str, str] = {}
    for place in dict.fromkeys(reversed(_line(target))):  # from the first base on
        for field in place.node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                name = field.target.id
                texts = {key: text for key, text in texts.items() if key.partition(".")[0] != name}  # it replaces them
                texts |= _of_field(name, Place(place.module, field.annotation))
    return texts


@cache
def declared(target: str) -> dict[str, Any]:
    """Return `defaults` of the class at a dotted name. Never change the result.

    Raises LookupError for a class that is not one of ours.
    """
    values = _defaults(target)
    left_out = ("name", *values.pop("only_if_stated", ()))
    return {key: plain(value) for key, value in values.items() if key not in left_out and isinstance(value, PLAIN)}


@cache
def defaults(target: type) -> dict[str, Any]:
    """Return the settings of a dataclass and their defaults, as a settings file writes them; of a part its settings or
    kind.

    Left out are `name`, which each file has, defaults that no file can write, and fields that the class lists in
    `only_if_stated`: they are settings of the files that state them. Never change the result.
    """
    left_out = ("name", *getattr(target, "only_if_stated", ()))
    values = {field.name: _default(field) for field in fields(target) if field.init and field.name not in left_out}
    return {name: plain(value) for name, value in values.items() if isinstance(value, PLAIN)}


def plain(value: Any) -> Any:
    """Return a default as a settings file writes it: a list for a tuple."""
    return list(value) if isinstance(value, tuple) else value


def _default(field: "Field[Any]") -> Any:
    if field.default_factory is MISSING:
        return REQUIRED if field.default is MISSING else field.default
    part = field.default_factory()
    if not is_dataclass(part) or hasattr(part, "name"):  # what has a name is no part
        return part
    settings = defaults(type(part))  # type: ignore[arg-type]
    return settings["kind"] if [*settings] == ["kind"] else settings


def _defaults(target: str) -> dict[str, Any]:
    """Return the default of each field of a class, and `only_if_stated` as the class has it."""
    values: dict[str, Any] = {}
    for place in dict.fromkeys(reversed(_line(target))):  # from the first base on
        for field in place.node.body if _is_dataclass(place.node) else ():
            match field:
                case ast.AnnAssign(target=ast.Name(id=name)) if (
                    name == "only_if_stated" or "ClassVar" not in ast.unparse(field.annotation)
                ):
                    values[name] = REQUIRED if field.value is None else _value(Place(place.module, field.value))
    return values


def _value(default: Place) -> Any:
    """Read the default of a field; `UNREAD` where it is none that a settings file writes."""
    match default.node:
        case ast.Name(id=name):
            place = _found(default.module, name)
            return UNREAD if place is None else _value(place)
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            given = {each.arg: each.value for each in keywords}
            if "default" in given:
                return _value(Place(default.module, given["default"]))
            if "default_factory" in given:
                return _made(Place(default.module, given["default_factory"]))
            return UNREAD
    try:
        return ast.literal_eval(default.node)
    except ValueError:
        return UNREAD


def _made(factory: Place) -> Any:
    """Read what a factory of defaults makes: a part, which is written by its kind if that is all, or a plain value."""
    if not isinstance(factory.node, ast.Name):
        return UNREAD
    place = _found(factory.module, factory.node.id)
    if place is None:
        return {} if factory.node.id == "dict" else UNREAD
    part = f"{place.module}.{place.node.name}"
    if "name" in _defaults(part):  # what has a name is no part
        return UNREAD
    settings = declared(part)
    return settings["kind"] if [*settings] == ["kind"] else settings


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _line(target: str) -> list[Place]:
    """Return a class and its bases of ours, depth first; the last place of one is as in Python's order. Raises
    LookupError for a class of others.
    """
    module, _, name = target.rpartition(".")
    place = _found(module, name)
    if place is None or not isinstance(place.node, ast.ClassDef):
        raise LookupError(target)
    line = [place]
    for base in (_base(place.module, base) for base in place.node.bases):
        if base is not None and isinstance(base.node, ast.ClassDef):
            line += _line(f"{base.module}.{base.node.name}")
    return line


def _of_field(name: str, hint: Place) -> dict[str, str]:
    """Return the meaning of a field, and of the parts of its value."""
    hint = _followed(hint)
    texts: dict[str, str] = {}
    for text in _means(hint.node):
        texts[name] = text
    for part in _parts(hint):
        texts |= {f"{name}.{inner}": text for inner, text in noted(part).items()} | texts
    return texts


def _means(hint: ast.AST) -> Iterator[str]:
    """Yield the texts of `Help` in `Annotated[type, Help("text")]`."""
    if isinstance(hint, ast.Subscript) and isinstance(hint.value, ast.Name) and hint.value.id == "Annotated":
        assert isinstance(hint.slice, ast.Tuple)
        for note in hint.slice.elts[1:]:
            if isinstance(note, ast.Call) and isinstance(note.func, ast.Name) and note.func.id == "Help":
                yield ast.literal_eval(note.args[0])


def _parts(hint: Place) -> Iterator[str]:
    """Yield the dotted names of the dataclasses that a value can be."""
    for node in ast.walk(hint.node):
        place = _found(hint.module, node.id) if isinstance(node, ast.Name) else None
        if place is None:
            continue
        if not isinstance(place.node, ast.ClassDef):
            yield from _parts(place)
        elif _is_dataclass(place.node):
            yield f"{place.module}.{place.node.name}"


def _followed(hint: Place) -> Place:
    """Return the type that a name stands for; another hint as it is."""
    while isinstance(hint.node, ast.Name):
        place = _found(hint.module, hint.node.id)
        if place is None or isinstance(place.node, ast.ClassDef):
            return hint
        hint = place
    return hint


def _base(module: str, base: ast.expr) -> Place | None:
    """Resolve `Base`, `Base[T]` or `file.Base`."""
    match base:
        case ast.Subscript(value=inner):
            return _base(module, inner)
        case ast.Attribute(value=ast.Name(id=file), attr=name):
            node = _names(module).get(file)
            return _found(f"{node.module}.{file}", name) if isinstance(node, ast.ImportFrom) else None
        case ast.Name(id=name):
            return _found(module, name)
    return None


@cache
def _found(module: str, name: str) -> Place | None:
    """Resolve a name of a module, also where it comes from another of ours; None for all others."""
    node = _names(module).get(name) if module.partition(".")[0] == OURS else None
    if isinstance(node, ast.ImportFrom):
        origin = next(alias.name for alias in node.names if name in (alias.asname, alias.name))
        return _found(str(node.module), origin)
    return None if node is None else Place(module, node)


@cache
def _names(module: str) -> dict[str, ast.AST]:
    """Return the classes, imports and named types of a module, by name."""
    path = ROOT.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names: dict[str, ast.AST] = {}
    for node in ast.parse(file.read_bytes()).body:
        match node:
            case ast.ClassDef():
                names[node.name] = node
            case ast.ImportFrom():
                names |= {alias.asname or alias.name: node for alias in node.names}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                names[name] = node.value  # type: ignore[assignment]
    return names
