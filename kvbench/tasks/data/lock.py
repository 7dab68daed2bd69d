"""The committed lock: for every file of a benchmark its source, revision, SHA-256, size and licence.

    "gsm8k": {"licence": "MIT", "downloads": [{
      "kind": "file", "url": "https://.../{revision}/.../{name}", "revision": "3101c7d5...",
      "files": {"test.jsonl": {"to": "gsm8k/test.jsonl", "sha256": "3730d312...", "bytes": null}}}]}

A download is one file at its host and becomes one or more outputs under `data.root`. A SHA-256 that nobody has measured
is null, never made up: such a file is *unpinned*, and what the first pull got is recorded beside it (`own.py`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from kvbench.support.errors import UserError

FILE = Path(__file__).with_name("lock.json")
Kind = Literal["file", "zip", "prompts", "parquet", "csv", "squad", "index"]
"""file: as it is; zip: named members; prompts: a Python file's tables of texts as JSON; parquet, csv, squad: rows as
lines of JSON; index: a list of further files."""


@dataclass(frozen=True)
class Output:
    """A file under `data.root`: its name there, the member of an archive it is, and what it must be.

    made_of: the locked SHA-256 of the download that it is made of, where it has none of its own.
    """

    path: str
    sha256: str | None = None
    bytes: int | None = None
    member: str = ""
    made_of: str | None = None


@dataclass(frozen=True)
class Each:
    """What an index lists: `url` with `{name}` filled in becomes the file `to` plus the name with `_` for `/`."""

    url: str
    to: str
    count: int
    about_bytes: int
    pins: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Download:
    """One file at its host: a data set of the hub (`repo`, `revision`) or a plain address (`url`).

    bytes: its size; about_bytes: its rough size where that is all that is known.
    """

    source: str
    kind: Kind
    name: str
    outputs: tuple[Output, ...]
    url: str = ""
    repo: str = ""
    revision: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    about_bytes: int | None = None
    each: Each | None = None

    @property
    def origin(self) -> str:
        """Where it comes from, in words that fit a table."""
        if not self.repo:
            return self.url
        return f"hf.co/datasets/{self.repo} {(self.revision or 'main, not pinned')[:16]} {self.name}"

    @property
    def is_pinned(self) -> bool:
        """Whether its bytes are known beforehand."""
        return self.sha256 is not None


@dataclass(frozen=True)
class Source:
    """All files of a folder under `data.root`."""

    name: str
    licence: str
    downloads: tuple[Download, ...]

    def outputs(self, root: Path) -> list[Output]:
        """What should lie under `root`, as far as its names are known; see `unnamed`."""
        return [output for one in whole(self.downloads, root) for output in one.outputs]

    def unnamed(self, root: Path) -> int:
        """How many further files an index lists that is not under `root` yet."""
        indices = [one.each for one in self.downloads if one.each and not (root / one.outputs[0].path).is_file()]
        return sum(each.count - len(each.pins) for each in indices)


Lock = Mapping[str, Source]


def read_lock(file: Path | None = None) -> Lock:
    """The lock by the names of its sources. Raises ValueError for a file that is none."""
    path = file or FILE
    try:
        sources = json.loads(path.read_text("utf-8"))["sources"]
        return {name: Source(name, one["licence"], tuple(_downloads(name, one))) for name, one in sources.items()}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is no lock of kvbench: {type(error).__name__}: {error}") from None


def whole(downloads: tuple[Download, ...], root: Path) -> Iterator[Download]:
    """The downloads, each index followed by what it lists: all of it where the index lies under `root`, else the files
    of which the lock holds more than their number."""
    for one in downloads:
        yield one
        if one.each:
            index = root / one.outputs[0].path
            known = " ".join(one.each.pins)
            yield from listed(one, index.read_text("utf-8", errors="replace") if index.is_file() else known)


def listed(index: Download, text: str) -> list[Download]:
    """The downloads that the text of an index lists, one name a line.

    Raises ValueError for a line that is no plain relative name.
    """
    each = index.each
    assert each is not None, index
    found = []
    for name in text.split():
        parts = name.split("/")
        if not all(part and part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts):
            raise UserError(f"{index.name} of {index.source} lists {name[:80]!r}: no plain name of a file")
        pin = each.pins.get(name, {})
        output = Output(each.to + name.replace("/", "_"), pin.get("sha256"), pin.get("bytes"))
        plain = Download(index.source, "file", name, (output,), each.url.format(name=name))
        about = None if output.bytes else each.about_bytes
        found.append(replace(plain, sha256=output.sha256, bytes=output.bytes, about_bytes=about))
    return found


def _downloads(source: str, content: Mapping[str, Any]) -> Iterator[Download]:
    for group in content["downloads"]:
        kind, revision = group["kind"], group["revision"]
        if kind not in get_args(Kind):
            raise TypeError(f"kind {kind!r} of {source} is none of {', '.join(get_args(Kind))}")
        for name, file in group["files"].items():
            yield Download(
                source,
                kind,
                name,
                tuple(_outputs(kind, file)),
                group["url"].format(name=name, revision=revision) if "url" in group else "",
                group.get("repo", ""),
                revision,
                file["sha256"],
                file["bytes"],
                file.get("about_bytes"),
                _each(group["each"]) if kind == "index" else None,
            )


def _outputs(kind: Kind, file: Mapping[str, Any]) -> Iterator[Output]:
    if kind == "zip":
        for member, one in file["members"].items():
            yield Output(one["to"], one["sha256"], one["bytes"], member, file["sha256"])
    elif kind in ("file", "index"):
        yield Output(file["to"], file["sha256"], file["bytes"])
    else:  # made here out of what is downloaded: its own bytes are not in the lock
        yield Output(file["to"], made_of=file["sha256"])


def _each(content: Mapping[str, Any]) -> Each:
    return Each(content["url"], content["to"], content["count"], content["about_bytes"], content["files"])
