"""Data files of tasks: their folder, their contents, and the command that fetches missing ones.

All lie under `data.root`. If that is null, the folder is $KVBENCH_DATA, else `data` under $KVBENCH_HOME if that is set,
else `data` in the working directory. Nothing is downloaded here.
"""

import hashlib
import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from string import Formatter
from typing import Any, TypeVar

from kvbench.support.errors import MissingFile, UserError
from kvbench.support.whole_file import sha256_of
from kvbench.tasks.data.lock import DataSource, read_lock
from kvbench.tasks.data.record import altered

VARIABLE = "KVBENCH_DATA"
HOME = "KVBENCH_HOME"
Read = TypeVar("Read")


class TaskError(UserError):
    """A setting or a template of a task is wrong, whatever the row."""


class NoData(MissingFile):
    """A file or pattern `name` that does not exist under `data.root`."""

    def __init__(self, root: str | None, name: str) -> None:
        family = name.partition("/")[0]
        fix = "docs/reference/data.md says where it comes from, or"
        if family in read_lock():
            fix = f"{command(root, family)} fetches it, or"
        place = folder(root)
        super().__init__(f"no file {place / name} (data.root={place}): {fix} name another folder with data.root=FOLDER")
        self.name = name


@dataclass(frozen=True, kw_only=True)
class FromFiles(ABC):
    """Base class of tasks that read files of `data.root`. A cell's name depends on their bytes, not on their folder.

    name, samples, seed: as in `Task`. root: the setting `data.root`.
    """

    name: str
    samples: int = 50
    seed: int = 42
    root: str | None = None
    left_out = ("samples", "repeats", "root", "path")

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Names of the files that the samples are made from, relative to `data.root`; none if they are generated."""

    @cached_property
    def data_sha256(self) -> str | None:
        """Return `hash_data`, computed once: a part of the names of cells."""
        return self.hash_data()

    def identity(self) -> dict[str, Any]:
        """Return the hash of its data, and which files differ from the lock or their download. Raises MissingFile."""
        if self.data_sha256 is None:
            return {}
        differing = altered(folder(self.root), self.files, self.data_sha256)
        return {"data_sha256": self.data_sha256} | ({"data_altered": list(differing)} if differing else {})

    def check_unchanged(self) -> None:
        """Raise MissingFile if the files no longer fit `data_sha256`: what was read of them is unknown."""
        if self.hash_data() != self.data_sha256:
            raise MissingFile(
                f"a file of task {self.name} has changed while it was read ({', '.join(self.files)[:100]}): no row was "
                "recorded; put the file back, or run the same command again"
            )

    def hash_data(self) -> str | None:
        """Return the SHA-256 over names and contents of `files`, read again if one has changed; None if there are none.
        Raises MissingFile.
        """
        if not self.files:
            return None
        digest = hashlib.sha256()
        for name in self.files:
            digest.update(f"{name} {current_sha256(self.root, name)}\n".encode())
        return digest.hexdigest()


def folder(root: str | None) -> Path:
    """Return the folder of the setting `data.root`."""
    home = os.environ.get(HOME)
    return Path(root or os.environ.get(VARIABLE) or (os.path.join(home, "data") if home else "data")).expanduser()


def find(root: str | None, name: str) -> Path:
    """Return a file under `data.root`. Raises MissingFile."""
    path = folder(root) / name
    if not path.is_file():
        raise NoData(root, name)
    return path


def listing(root: str | None, pattern: str) -> tuple[str, ...]:
    """Sorted names, relative to `data.root`, of the files of a pattern. Raises MissingFile if there are none."""
    under = folder(root)
    names = tuple(sorted(path.relative_to(under).as_posix() for path in under.glob(pattern) if path.is_file()))
    if not names:
        raise NoData(root, pattern)
    return names


def absent(root: str | None, source: DataSource) -> list[str]:
    """Return the files and patterns of a source that match nothing under `data.root`."""
    return [name for name in source.patterns if not any(path.is_file() for path in folder(root).glob(name))]


def command(root: str | None, name: str) -> str:
    """Return the command that fetches a source into `data.root`."""
    return f"kvbench data pull {name}" + (f" data.root={shlex.quote(root)}" if root else "")


def limit_samples(task: Any, available: Callable[[], int]) -> None:
    """Set `samples` to at most the available ones, as far as the file of rows (the first of `files`) is there."""
    if (folder(task.root) / task.files[0]).is_file():
        object.__setattr__(task, "samples", min(task.samples, max(1, available())))


def remembered(read: Callable[[str | None, str], Read]) -> Callable[[str | None, str], Read]:
    """Return a cached reader of a file under `data.root`: a changed file is read again. Raises MissingFile."""

    @lru_cache
    def cached(root: str | None, name: str, path: Path, *state: int) -> Read:
        return read(root, name)

    @wraps(read)
    def current(root: str | None, name: str) -> Read:
        path = find(root, name)
        status = path.stat()  # of a copy that keeps the time of change the rest differs
        return cached(root, name, path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    return current


def own_name(path: str) -> str:
    """Return the name of a user's own file among the files of a task: its absolute path."""
    return str(Path(path).expanduser().absolute())


def own_file(path: str, form: str) -> Path:
    """Return a user's own file, `task.path`. Raises MissingFile, with the form of its lines, where there is none."""
    if not (file := Path(own_name(path))).is_file():
        raise MissingFile(f"task.path={path}: no such file; {form}")
    return file


@remembered
def current_sha256(root: str | None, name: str) -> str:
    """SHA-256 of a file under `data.root`, which is read again if it has changed. Raises MissingFile."""
    return sha256_of(find(root, name))


def fill(template: str, fields: Mapping[str, str], file: str) -> tuple[str, str]:
    """Return a prompt template, filled as text, in two parts: up to the end of the context, and the rest.

    Braces in the fields stay. `file` is the template's, for messages.

    Raises TaskError for a template without `{context}`, with an unknown field, or with a stray brace.
    """
    parts, at = ["", ""], 0
    try:
        for literal, field, form, conversion in Formatter().parse(template):
            parts[at] += literal
            if field is None:
                continue
            if field not in fields or form or conversion:
                raise UserError(f"the template asks for {{{field}}}; a row has only {', '.join(fields)}")
            parts[at] += fields[field]
            at = 1 if field == "context" else at
    except ValueError as error:
        raise TaskError(f"{file}: {error}") from None
    if not at:
        raise TaskError(f"{file}: the template has no {{context}}")
    return parts[0], parts[1]


def json_object(root: str | None, file: str) -> dict[str, Any]:
    """Return the object of a JSON file under `data.root`, else an empty one. Raises UserError if it is not JSON."""
    path = find(root, file)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON in UTF-8: {error}") from None
    return content if isinstance(content, dict) else {}
