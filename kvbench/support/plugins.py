"""Where policies, scores, tasks and models come from: kvbench's own settings and installed plugins.

A plugin is a distribution with an entry point in the group `kvbench.plugins` that names a package with a folder `conf`.
Plugins are found by their metadata and imported only when something of theirs is used. A broken plugin brings nothing,
so that every command still runs; `faults` says what is wrong with it. A name that two sources have is an error.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

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
RUN, SYNONYMS = "run.yaml", "synonyms.yaml"
"""Files of a source: the groups that it brings, and words of other tools (`kvbench.config.synonyms`)."""
GROUPS = (
    *("allocation", "attention", "bench", "bench_result", "command", "convert", "decoding", "doctor", "hint"),
    *("kernels", "launcher", "logger", "maker", "model", "model_file", "paper", "paper_flag", "plan", "plot"),
    *("policy", "report", "score", "segments", "step", "task", "timing", "warning"),
)
"""Groups that the core reads: a plugin may add to them though no other source has a member."""
LOOSE = "kvbench_loose_"
"""How the names of modules begin that are loaded from a file without a package (`kvbench.config.given`)."""


@dataclass(frozen=True)
class Source:
    """A distribution, the package in it that holds settings, and their folder."""

    name: str
    version: str
    package: str
    conf: Path

    def files(self, group: str) -> list[Path]:
        """Return the settings files of a group, by path."""
        return sorted((self.conf / group).rglob(f"*{SUFFIX}"))

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


class Brought(NamedTuple):
    """The groups of a `run.yaml`. Those of `usual` hold kept pairs; no command line has the names of `unlisted`."""

    groups: frozenset[str] = frozenset()
    usual: Mapping[str, str] = MappingProxyType({})
    unlisted: tuple[str, ...] = ()


def sources() -> tuple[Source, ...]:
    """Return settings of kvbench and of its extras, then of every plugin by name that is not broken."""
    return (*own_sources(), *usable_plugins())


def usable_plugins() -> tuple[Source, ...]:
    """Return the settings of every plugin that is not broken."""
    return _plugins(tuple(sys.path))[0]


def faults() -> tuple[str, ...]:
    """Return what is wrong with each plugin that is broken."""
    return _plugins(tuple(sys.path))[1]


@lru_cache
def own_sources() -> tuple[Source, ...]:
    """Return the folders of kvbench's settings, looked for once: `conf`, then one of each extra that has some."""
    extras = ((f"{OURS}.extras.{path.name}", path / "conf") for path in paths.extras() if (path / "conf").is_dir())
    return tuple(Source(OURS, __version__, package, conf) for package, conf in ((OURS, paths.conf()), *extras))


def plugins() -> list[EntryPoint]:
    """Return the entry points of installed plugins, by the name of their distribution."""
    points = entry_points(group=ENTRY_POINTS)
    return sorted(points, key=lambda point: (point.dist.name if point.dist else "", point.name))


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
        folders = (conf, *(source.conf for source in own_sources()))
        allowed = sorted(set(GROUPS).union(*(brought(folder).groups for folder in folders)))
    except UserError as error:
        raise UserError(f"{entry}: {error}; {fix}") from None
    for folder in sorted({*conf.iterdir()} - {conf / RUN, conf / SYNONYMS}):
        if not folder.name.startswith((".", "__")) and not (folder.is_dir() and folder.name in allowed):
            own = f"allowed folders: {', '.join(allowed)}, or what {conf / RUN} names: groups: [{folder.stem}]"
            raise UserError(f"{entry}: {folder} is not a group of settings; {own}; {fix}")
    return Source(name, version, point.value, conf)


def groups() -> list[str]:
    """Return the kinds of settings that are chosen by name: those that the core reads, and those that sources bring."""
    return sorted(set(GROUPS).union(*(brought(source.conf).groups for source in sources())))


@lru_cache
def held_groups() -> dict[str, str]:
    """Return the groups that hold the kept pairs of a cell, by extras and plugins, each with its usual member."""
    return dict(sorted(pair for source in sources()[1:] for pair in brought(source.conf).usual.items()))


@lru_cache
def brought(conf: Path) -> Brought:
    """Return what the `run.yaml` of a folder of settings brings. Raises UserError for a file that names no group."""
    file = conf / RUN
    if not file.is_file():
        return Brought()
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
        usual = {str(group): str(member) for entry in content.pop("defaults", ()) for group, member in entry.items()}
        listed, unlisted = (tuple(map(str, content.pop(key, ()))) for key in ("groups", "unlisted"))
        if (groups := frozenset((*usual, *listed, *unlisted))) and not content:
            return Brought(groups, usual, unlisted)
    except (yaml.YAMLError, TypeError, ValueError, AttributeError):
        pass  # one bad entry spoils the file
    raise UserError(f"{file} names no group; it holds: defaults: [GROUP: MEMBER], groups: [GROUP], unlisted: [GROUP]")


def items(group: str) -> dict[str, GroupItem]:
    """Return every name of a group. Raises UserError for a name that two sources have. Never change the result."""
    return _items(group, tuple(sys.path))


@lru_cache
def _items(group: str, _: tuple[str, ...]) -> dict[str, GroupItem]:
    by_name: dict[str, GroupItem] = {}
    for source in sources():
        for path in source.files(group):
            own_name = path.relative_to(source.conf / group).with_suffix("").as_posix()
            for name in member_names(path.read_text("utf-8", "replace")) or (own_name,):
                if name in by_name:
                    fix = f"rename {path}, or pip uninstall {source.name}"
                    raise UserError(f"{group} {name} is in {by_name[name].source} and in plugin {source}: {fix}")
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
            version = next((str(source) for source in sources() if source.package.partition(".")[0] == package), "")
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
def _plugins(_: tuple[str, ...]) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    """Return the settings of plugins, and what is wrong with plugins that are broken."""
    usable, broken = list[Source](), list[str]()
    for point in plugins():
        try:
            usable.append(source_of(point))
        except UserError as error:
            broken.append(str(error))
    return tuple(usable), tuple(broken)
