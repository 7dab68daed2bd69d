"""Data files of tasks: their folder, the files of each benchmark, and the command that fetches missing ones.

All lie under `data.root`. If that is null, the folder is $KVBENCH_DATA, else `data` under $KVBENCH_HOME if that is set,
else `data` in the working directory. Nothing is downloaded here.
"""

import hashlib
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar

from kvbench.support.errors import MissingFile

VARIABLE = "KVBENCH_DATA"
HOME = "KVBENCH_HOME"
Read = TypeVar("Read")


@dataclass(frozen=True)
class Source:
    """What the tasks of a benchmark need: names or patterns of files under `data.root`; and the tasks in words."""

    files: tuple[str, ...]
    tasks: str


SOURCES = {
    "paul_graham_essays": Source(("paul_graham_essays/*.txt",), "RULER tasks with essays, needle"),
    "ruler": Source(
        ("ruler/squad.json", "ruler/hotpotqa.json", "ruler/english_words.json", "ruler/simonjegou/*/*.parquet"),
        "RULER qa_1, qa_2, cwe from 64K tokens up, and the published rows",
    ),
    "longbench": Source(
        ("longbench/*.jsonl", "longbench/config/dataset2prompt.json", "longbench/config/dataset2maxlen.json"),
        "LongBench and LongBench-E",
    ),
    "longbench_v2": Source(("longbench_v2/data.jsonl", "longbench_v2/prompts/0shot*.txt"), "LongBench v2"),
    "helmet": Source(
        ("helmet/json_kv/*.jsonl", "helmet/ruler/*/*.jsonl", "helmet/kilt/*.jsonl", "helmet/msmarco/*.jsonl"),
        "HELMET: recall, RAG and re-ranking",
    ),
    "helmet_icl": Source(("helmet_icl/*.jsonl",), "HELMET: in-context learning, but for nlu"),
    "longproc": Source(
        ("longproc/*/*.jsonl", "longproc/*/prompts.yaml", "longproc/html_to_tsv/webpage/*.html"),
        "LongProc without code to run",
    ),
    "infinitebench": Source(("infinitebench/*.jsonl", "infinitebench/prompts.json"), "InfiniteBench"),
    "pg19": Source(("pg19/*.txt",), "PG19 perplexity"),
    "scbench": Source(("scbench/*.jsonl",), "SCBench as in KVzip"),
    "scbench_official": Source(("scbench_official/*.jsonl",), "SCBench as officially"),
    "squad": Source(("squad/train.jsonl",), "SQuAD as in KVzip"),
    "gsm8k": Source(("gsm8k/test.jsonl",), "GSM8K as in KVzip"),
    "math500": Source(("math500/test.jsonl",), "MATH-500"),
    "aime": Source(("aime/2024.jsonl", "aime/2025.jsonl"), "AIME 2024 and 2025"),
    "mrcr": Source(tuple(f"mrcr/{needles}needle_{part}.jsonl" for needles in (2, 4, 8) for part in (0, 1)), "MRCR"),
    "nolima": Source(
        ("nolima/needle_set.json", *(f"nolima/rand_book_{number}.txt" for number in range(1, 6))),
        "NoLiMa, for non-commercial research only",
    ),
    "booksum": Source(("booksum/test.jsonl",), "BookSum perplexity"),
}
"""The folders under `data.root` by name; `kvbench data` knows the source of each file."""


class NoData(MissingFile):
    """A file or pattern `name` that does not exist under `data.root`."""

    def __init__(self, root: str | None, name: str) -> None:
        family = name.partition("/")[0]
        source = SOURCES.get(family)
        fix = "docs/data.md says where it comes from, or"
        if source:
            fix = f"{command(root, family)} fetches it ({family} is {', '.join(source.files)}), or"
        place = folder(root)
        super().__init__(f"no file {place / name} (data.root={place}): {fix} name another folder with data.root=FOLDER")
        self.name = name


@dataclass(frozen=True, kw_only=True)
class FromFiles(ABC):
    """Base class of tasks that read files of `data.root`. A cell's name depends on their bytes, not on their folder."""

    root: str | None = None

    @property
    @abstractmethod
    def files(self) -> tuple[str, ...]:
        """Names of the files that the samples are made from, relative to `data.root`; none if they are generated."""

    @cached_property
    def data_sha256(self) -> str | None:
        """SHA-256 over names and contents of `files`, or None if there are none. Raises MissingFile."""
        if not self.files:
            return None
        digest = hashlib.sha256()
        for name in self.files:
            digest.update(f"{name} {_sha256(self.root, name)}\n".encode())
        return digest.hexdigest()


def folder(root: str | None) -> Path:
    """The folder of the setting `data.root`."""
    home = os.environ.get(HOME)
    return Path(root or os.environ.get(VARIABLE) or (os.path.join(home, "data") if home else "data")).expanduser()


def find(root: str | None, name: str) -> Path:
    """A file under `data.root`. Raises MissingFile."""
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


def absent(root: str | None, source: Source) -> list[str]:
    """The files and patterns of a source that match nothing under `data.root`."""
    return [name for name in source.files if not any(path.is_file() for path in folder(root).glob(name))]


def command(root: str | None, name: str) -> str:
    """The command that fetches a source into `data.root`."""
    return f"kvbench data pull {name}" + (f" data.root={shlex.quote(root)}" if root else "")


def limit_samples(task: Any, available: Callable[[], int]) -> None:
    """Set `samples` to at most the available ones, as far as the file of rows (the first of `files`) is there."""
    if (folder(task.root) / task.files[0]).is_file():
        object.__setattr__(task, "samples", min(task.samples, max(1, available())))


def remembered(read: Callable[[str | None, str], Read]) -> Callable[[str | None, str], Read]:
    """A cached reader of a file under `data.root`, which reads again if the file has changed. Raises MissingFile."""

    @lru_cache
    def cached(root: str | None, name: str, path: Path, size: int, changed: int) -> Read:
        return read(root, name)

    @wraps(read)
    def current(root: str | None, name: str) -> Read:
        path = find(root, name)
        status = path.stat()
        return cached(root, name, path, status.st_size, status.st_mtime_ns)

    return current


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@remembered
def _sha256(root: str | None, name: str) -> str:
    return sha256_of(find(root, name))
