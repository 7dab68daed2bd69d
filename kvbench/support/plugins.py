"""Where policies, scores, tasks and models come from: kvbench's own settings and installed plugins.

A plugin is a distribution with an entry point in the group `kvbench.plugins` that names a package with a folder `conf`.
Plugins are found by their metadata and imported only when something of theirs is used. A broken plugin is an error that
names it: ignoring it could change which settings a name means.
"""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from kvbench.support import __version__, paths
from kvbench.support.class_code import class_sha256
from kvbench.support.errors import UserError
from kvbench.support.settings_file import member_names

ENTRY_POINTS = "kvbench.plugins"
OURS = "kvbench"
NO_STEP = "drop"
"""The kind of a part of a policy that does nothing after selection; descriptions of cells do not name it."""
SUFFIX = ".yaml"
RUN = "run.yaml"
"""The settings file of an extra or a plugin that brings a group."""
LOOSE = "kvbench_loose_"
"""How the names of modules begin that are loaded from a file without a package (`kvbench.config.given`)."""


@dataclass(frozen=True)
class Source:
    """A distribution, the package in it that holds settings, and their folder."""

    name: str
    version: str
    package: str
    conf: Path

    def __str__(self) -> str:
        return OURS if self.name == OURS else f"{self.name} {self.version}"


@dataclass(frozen=True)
class GroupItem:
    """A name of the command line, e.g. `ruler/niah_single_1` of group task, and the file that says what it means.

    The file is of this name alone, or of all `members` of a benchmark.
    """

    group: str
    name: str
    path: Path
    source: Source

    def __str__(self) -> str:
        """Return its name in error messages, with the plugin that it comes from."""
        return f"{self.group} {self.name}" + ("" if self.source.name == OURS else f" of plugin {self.source}")


def sources() -> tuple[Source, ...]:
    """Return settings of kvbench and of its extras, then of every plugin by name. Raises UserError for one that is
    broken.
    """
    return (*own_sources(), *map(source_of, plugins()))


def own_sources() -> tuple[Source, ...]:
    """Return the folders of kvbench's settings: `conf`, then one of each extra that has some."""
    extras = ((f"{OURS}.extras.{folder.name}", folder / "conf") for folder in paths.extras())
    sources = ((OURS, paths.conf()), *((package, conf) for package, conf in extras if conf.is_dir()))
    return tuple(Source(OURS, __version__, package, conf) for package, conf in sources)


def plugins() -> list[EntryPoint]:
    """Return the entry points of installed plugins, by the name of their distribution."""
    return list(_entry_points(tuple(sys.path)))


def usable_plugins() -> list[Source]:
    """Return the settings of every plugin that is not broken; `sources` says what is wrong with the others."""
    sources = []
    for point in plugins():
        with suppress(UserError):
            sources.append(source_of(point))
    return sources


def plugin_packages() -> list[str]:
    """Return the packages of installed plugins, outermost names only."""
    return sorted({point.value.partition(".")[0] for point in plugins()})


def source_of(point: EntryPoint) -> Source:
    """Return the settings that an entry point names. Raises ValueError, naming the distribution, if there are none."""
    assert point.dist is not None, "entry points of installed distributions know theirs"
    name, version = point.dist.name, point.dist.version
    entry = f"plugin {name} {version}: its entry point {ENTRY_POINTS}: {point.name} = {point.value!r}"
    fix = f"fix it, or pip uninstall {name}"
    try:
        spec = find_spec(point.value)  # imports the parent of a nested package
    except Exception as error:
        raise UserError(f"{entry} cannot be found: {type(error).__name__}: {error}; {fix}") from None
    if spec is None or not spec.submodule_search_locations:
        problem = "no module that is installed" if spec is None else "no package, so that it cannot hold a folder conf"
        raise UserError(f"{entry} names {problem}; {fix}")
    places = [Path(place) / "conf" for place in spec.submodule_search_locations]
    conf = next((place for place in places if place.is_dir()), None)
    if conf is None:
        raise UserError(f"{entry} names a package that has no folder conf (looked for {places[0]}); {fix}")
    try:
        allowed = sorted({*groups(), *usual_members(conf)})
    except UserError as error:
        raise UserError(f"{entry}: {error}; {fix}") from None
    for folder in sorted({*conf.iterdir()} - {conf / RUN}):
        if not folder.name.startswith((".", "__")) and not (folder.is_dir() and folder.name in allowed):
            raise UserError(
                f"{entry}: {folder} is not a group of settings; allowed folders: {', '.join(allowed)}; {fix}"
            )
    return Source(name, version, point.value, conf)


@lru_cache
def groups() -> list[str]:
    """Kinds of settings that are chosen by name: the folders in `conf` of kvbench and of its extras."""
    return sorted({path.name for source in own_sources() for path in source.conf.iterdir() if path.is_dir()})


@lru_cache
def held_groups() -> dict[str, str]:
    """Return the groups whose members hold the kept pairs of a cell, which extras and plugins bring, and the member
    that a run has unless it names another. A plugin that is broken brings none; `sources` says what is wrong.
    """
    members: dict[str, str] = {}
    for source in (*own_sources()[1:], *usable_plugins()):
        members |= usual_members(source.conf)
    return dict(sorted(members.items()))


@lru_cache
def usual_members(conf: Path) -> dict[str, str]:
    """Return the groups that a folder of settings brings, each with its usual member: the defaults of its `run.yaml`.

    Raises UserError for a file that names none. Never change the result.
    """
    file, members = conf / RUN, dict[str, str]()
    if not file.is_file():
        return members
    try:
        for entry in yaml.safe_load(file.read_text("utf-8"))["defaults"]:
            members |= {str(group): str(member) for group, member in entry.items()}
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        members = {}  # one bad entry spoils the file
    if not members:
        raise UserError(f"{file} names no group; it holds: defaults: [GROUP: MEMBER]")
    return members


def items(group: str) -> dict[str, GroupItem]:
    """Return every name of a group. Raises UserError for a name that two sources have. Never change the result."""
    return _items(group, tuple(sys.path))


@lru_cache
def _items(group: str, _: tuple[str, ...]) -> dict[str, GroupItem]:
    by_name: dict[str, GroupItem] = {}
    for source in sources():
        for path in sorted((source.conf / group).rglob(f"*{SUFFIX}")):
            own_name = path.relative_to(source.conf / group).with_suffix("").as_posix()
            for name in member_names(path.read_text("utf-8", "replace")) or (own_name,):
                if name in by_name:
                    raise UserError(
                        f"{group} {name} is in {by_name[name].source} and in plugin {source}: rename {path}, "
                        f"or pip uninstall {source.name}"
                    )
                by_name[name] = GroupItem(group, name, path, source)
    return dict(sorted(by_name.items()))


def foreign(part: Any) -> dict[str, dict[str, str]]:
    """Return the third-party packages that define the class of a component or of one in its fields, with hash and
    version.

    The version is of the plugin that owns the package, blank for code that is installed in another way. `sha256`
    covers all Python files of the package, so that editing a score between two runs changes it; of a class that was
    typed into a notebook, its own code.
    """
    packages = {}
    for component in parts_of(part):
        package = type(component).__module__.partition(".")[0]
        if package not in (OURS, "builtins"):
            module = sys.modules[package]
            owners = (source for source in map(source_of, plugins()) if source.package.partition(".")[0] == package)
            version = next(map(str, owners), "")
            name = Path(str(module.__file__)).name if package.startswith(LOOSE) else package
            if not getattr(module, "__path__", ()) and not Path(getattr(module, "__file__", None) or "").is_file():
                name, code = type(component).__qualname__, class_sha256(type(component))  # typed into a notebook
            else:
                code = _code(module)
            packages[name] = {"plugin": version, "sha256": code}
    return packages


def parts_of(part: Any) -> Iterator[Any]:
    """Yield a component, the components in its fields, and what it runs."""
    if is_dataclass(part):
        yield part
        for value in (*(getattr(part, field.name) for field in fields(part)), *getattr(part, "runs", ())):
            for inner in value if isinstance(value, tuple) else (value,):
                yield from parts_of(inner)


@lru_cache
def _code(module: ModuleType) -> str:
    """SHA-256 of the Python files of a package or module, by name and content, computed once per process."""
    folders, digest = [Path(place) for place in getattr(module, "__path__", ())], hashlib.sha256()
    files = [(folder, path) for folder in folders for path in sorted(folder.rglob("*.py"))]
    if not folders and getattr(module, "__file__", None):
        files = [(Path(str(module.__file__)).parent, Path(str(module.__file__)))]
    for folder, path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@lru_cache(maxsize=8)
def _entry_points(_: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Cache by search path, because the lookup reads the metadata of every installed distribution."""
    points = entry_points(group=ENTRY_POINTS)
    return tuple(sorted(points, key=lambda point: (point.dist.name if point.dist else "", point.name)))
