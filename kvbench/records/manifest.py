"""Content of a folder as one hash to cite: `manifest.json`, written by `kvbench pack` and by runs as they end.

{"files": {"rows/<name>.jsonl": {"bytes": 9120, "lines": 30, "sha256": "9f.."}, ..}, "rows": 30, "root": "0c.."}

The root is the SHA-256 of the canonical JSON of the files' names and SHA-256s. Files that only say how a folder was
made (processes, leases, jobs, logs, tracebacks) and copies (columns) are not listed.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kvbench.records.environment import content_hash
from kvbench.records.folder import NUMBERS, ResultsFolder, replacing
from kvbench.records.lines import Warn, check_file, listed, read_json
from kvbench.support.errors import UserError
from kvbench.support.quantity import count_noun, shortened

NAME = "manifest.json"
LISTED = (
    *("rows", "kept", "curves", "prompts", "timings", NUMBERS),
    *("cells", "codes", "environments", "finished", "sweeps"),
)
"""The folders whose files are listed."""
_SUFFIXES = (".jsonl", ".json", ".parquet")
_CITED = 16
"""Hex digits of the root that a page cites."""


@dataclass(frozen=True)
class Listed:
    """A file: its size, its lines and the SHA-256 of its bytes in hex."""

    bytes: int
    lines: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by their paths in it, how many lines its rows files have, and the root hash."""

    files: Mapping[str, Listed]
    rows: int
    root: str

    @classmethod
    def of(cls, files: Mapping[str, Listed]) -> "Manifest":
        """Return the manifest of these files."""
        rows = sum(file.lines for path, file in files.items() if path.startswith("rows/"))
        return cls(files, rows, content_hash({path: file.sha256 for path, file in files.items()}))

    def __str__(self) -> str:
        return f"{count_noun(self.rows, 'row')} in {count_noun(len(self.files), 'file')}, manifest {self.root[:_CITED]}"


def read_manifest(folder: ResultsFolder) -> Manifest | None:
    """Return the manifest of a folder; None if it has none. Raises UserError for a damaged one."""
    path = folder.path / NAME
    if not path.exists() and not path.is_symlink():
        return None
    manifest = read_json(Manifest, path, "a manifest (kvbench pack writes it anew)")
    if Manifest.of(manifest.files) != manifest:
        raise UserError(f"{path} was changed: its root is not the hash of its files; remove it; kvbench pack writes it")
    return manifest


def unchanged_manifest(folder: ResultsFolder) -> Manifest | None:
    """Return the manifest of a folder, after every listed file was read again; None if it has none.

    Raises UserError for a damaged one, and where a listed file has changed or is gone.
    """
    if (manifest := read_manifest(folder)) is not None and (changed := differing(manifest, folder)[0]):
        raise UserError(
            f"{count_noun(len(changed), 'file')} of {folder.path} changed or gone since {NAME} was written: "
            f"{shortened(changed, 3)}: put them back, or remove {NAME} to take the folder as it is"
        )
    return manifest


def lacks_files(manifest: Manifest | None, folder: ResultsFolder) -> bool:
    """Return whether a folder has files that its manifest does not list, and all others at the sizes listed; none is
    read.
    """
    files = {} if manifest is None else manifest.files
    return _sizes(folder).items() > {path: file.bytes for path, file in files.items()}.items()


def write_manifest(folder: ResultsFolder, previous: Manifest | None) -> Manifest:
    """List what the folder holds now. Files that `previous` has at the same size are not read again.

    Another process may end meanwhile: what it added is listed too.
    """
    while True:
        ended = _ended(folder)
        files = {path: _listed(folder, path, size, previous) for path, size in _sizes(folder).items()}
        manifest = Manifest.of(files)
        with replacing(folder.path / NAME) as temporary:
            temporary.write_text(json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n", "ascii")
        if _ended(folder) == ended:
            return manifest
        previous = manifest


def differing(manifest: Manifest, folder: ResultsFolder) -> tuple[list[str], list[str]]:
    """Return the files that are not as a manifest lists them, or gone; and those that it does not list."""
    sizes = _sizes(folder)
    changed = [
        path
        for path, file in manifest.files.items()
        if sizes.get(path) != file.bytes or _listed(folder, path, file.bytes, None) != file
    ]
    return changed, sorted(sizes.keys() - manifest.files.keys())


def true_manifest(folder: ResultsFolder, warn: Warn) -> Manifest | None:
    """Return the manifest of a folder, to cite it, after every listed file was read again; None without a true one."""
    try:
        if (manifest := read_manifest(folder)) is None:
            return None
        changed, new = differing(manifest, folder)
    except UserError as error:
        warn(str(error))
        return None
    if not changed and not new:
        return manifest
    difference = (
        f"{count_noun(len(changed), 'file')} changed or gone"
        if changed
        else f"{count_noun(len(new), 'file')} not listed"
    )
    warn(f"{folder.path / NAME} does not describe the folder: {difference}: {shortened(changed or new, 3)}; not cited")
    return None


def _ended(folder: ResultsFolder) -> set[str]:
    return {path.name for path in listed(folder.path / "finished", ".json")}


def _sizes(folder: ResultsFolder) -> dict[str, int]:
    """Return the size of every file to list, by path."""
    paths = (path for name in LISTED for path in listed(folder.path / name) if path.suffix in _SUFFIXES)
    return {path.relative_to(folder.path).as_posix(): path.stat().st_size for path in paths if path.is_file()}


def _listed(folder: ResultsFolder, path: str, size: int, previous: Manifest | None) -> Listed:
    if previous is not None and (file := previous.files.get(path)) is not None and file.bytes == size:
        return file
    return _hashed(folder.path / path, size)


def _hashed(path: Path, size: int) -> Listed:
    """Return the first `size` bytes of a file: what is appended meanwhile is not read."""
    check_file(path)
    digest, lines, remaining = hashlib.sha256(), 0, size
    with path.open("rb", buffering=0) as file:
        while remaining and (chunk := file.read(min(2**20, remaining))):
            digest.update(chunk)
            lines += chunk.count(b"\n")
            remaining -= len(chunk)
    return Listed(size - remaining, lines, digest.hexdigest())
