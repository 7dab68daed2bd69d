"""Results folders copied into one: every sample once, with all that belongs to its row.

Of the rows of one cell and sample one is taken; those that did not fail must have the same outcome. A rows file of
which every line is taken is copied as it is, of another the lines that are taken. Leases, SLURM jobs, logs and copies
as columns stay behind.
"""

import errno
import filecmp
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from kvbench.records.folder import NUMBERS, SIDECARS, Finished, ResultsFolder, check_is_path
from kvbench.records.lines import Warn, check_file, crc32_of, listed
from kvbench.records.manifest import Manifest, unchanged_manifest, write_manifest
from kvbench.records.row import COLUMNS
from kvbench.records.rows import DECIDING, check_identical, counting, whole_rows
from kvbench.support.errors import MissingFile, UserError, naming
from kvbench.support.grouped import grouped
from kvbench.support.whole_file import lines_of

_NAMED_BY_CONTENT = ("cells", "codes", "environments", "sweeps")
_BESIDE = ("errors", "processes", NUMBERS)
_SUFFIXES = (".json", ".jsonl", ".txt", ".parquet")


@dataclass(frozen=True)
class Taken:
    """A file of a folder that a merged folder gets: of a rows file the numbers of the lines, of another None, all."""

    file: Path
    lines: frozenset[int] | None = None


def merge(sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], warn: Warn) -> Manifest:
    """Copy results folders into `target`, which appears when it is complete; returns its manifest.

    Raises as `taken`, which says what is copied.
    """
    files = taken(sources, target, warn)
    with _appearing(Path(target)) as path:
        merged = ResultsFolder(path)
        for each in files:
            if each.lines is not None:
                _copy_rows(each.file, each.lines, merged)
                continue
            copy = path / each.file.parent.name / each.file.name
            copy.parent.mkdir(exist_ok=True)
            with naming(copy):
                shutil.copyfile(each.file, copy)
        return write_manifest(merged, None)


def taken(sources: Sequence[str | os.PathLike[str]], target: str | os.PathLike[str], warn: Warn) -> list[Taken]:
    """Return the files that `merge` would copy, in its order; nothing is written.

    Rows that are taken: of a folder those that count, as `kvbench.records.rows.counting`; of several folders one
    that did not fail, the first by file name of the newest code. Faults of rows go to ``warn``.

    Raises UserError where rows that did not fail contradict each other, files are damaged or changed, a folder is
    named twice, or `target` has something in it; MissingFile for what is no results folder and where there are no rows.
    """
    check_is_path(target)
    folders = [ResultsFolder(source) for source in sources]
    _check_free(Path(target))
    for number, folder in enumerate(folders):
        _check_source(folder)
        if any(folder.path.samefile(other.path) for other in folders[:number]):
            raise UserError(f"{folder.path} is named twice: name each folder once")
    files = _rows_files(folders)
    line_numbers = _counting_lines(folders, set(files.values()), warn)
    if not line_numbers:
        raise MissingFile(f"no rows in {', '.join(str(folder.path) for folder in folders)}: run `kvbench run` first")
    result = list[Taken]()
    for file in files.values():
        if file in line_numbers:
            result.append(Taken(file, frozenset(line_numbers[file])))
        sidecars = (_whole_sidecar(folders, name, file.name) for name in SIDECARS)
        result += [Taken(sidecar) for sidecar in sidecars if sidecar is not None]
    others: dict[tuple[str, str], Path] = {}
    for file in chain(*(_files(folder, name) for folder in folders for name in (*_NAMED_BY_CONTENT, *_BESIDE))):
        first = others.setdefault((file.parent.name, file.name), file)
        if file.parent.name == NUMBERS and not filecmp.cmp(first, file, shallow=False):
            raise UserError(f"{file}: another folder has this file with other content; leave one of the folders out")
    return [*result, *map(Taken, others.values())]


def _check_free(target: Path) -> None:
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        state = "is a file" if target.is_file() else "is not empty"
        raise UserError(f"{target} {state}, and nothing is overwritten: name a folder that does not exist")


def _check_source(folder: ResultsFolder) -> None:
    """Raise UserError for a folder with damaged or changed files, and for links that lead out of it."""
    if not any((folder.path / name).is_dir() for name in ("rows", "sweeps", NUMBERS)):
        state = "is no results folder" if folder.path.exists() else "does not exist"
        raise MissingFile(f"{folder.path} {state}: name the folders of runs (their results.dir)")
    for name in ("rows", *SIDECARS, *_NAMED_BY_CONTENT, *_BESIDE):
        for file in _files(folder, name):
            check_file(file)
            if not file.resolve().is_relative_to(folder.path.resolve()):
                raise UserError(f"{file} is a link to {file.resolve()}, outside of the folder: put the file there")
    unchanged_manifest(folder)
    for file in _files(folder, "cells"):
        folder.read_cell(file.stem)
    for file in _files(folder, "codes"):
        folder.read_code(file.stem)
    folder.environments()
    folder.read_requested()


def _files(folder: ResultsFolder, name: str) -> list[Path]:
    return [path for path in listed(folder.path / name) if path.suffix in _SUFFIXES]


def _rows_files(folders: Sequence[ResultsFolder]) -> dict[str, Path]:
    """Return the rows files by name; of a file and its copies, some made while it was written, the longest."""
    files: dict[str, Path] = {}
    for folder in folders:
        for file in _files(folder, "rows"):
            other = files.setdefault(file.name, file)
            long, short = sorted((other, file), key=lambda path: path.stat().st_size, reverse=True)
            if short != long and not _begins_with(long, short):
                raise UserError(f"{other} and {file} have one name and other rows: one of them was changed; remove it")
            files[file.name] = long
    return files


def _whole_sidecar(folders: Sequence[ResultsFolder], name: str, file_name: str) -> Path | None:
    """Of the files of this name beside rows the one that has the lines of all; None if there is none.

    Raises UserError where each of two has lines of its own.
    """
    paths = [folder.path / name / file_name for folder in folders]
    copies = sorted((path for path in paths if path.exists()), key=lambda path: path.stat().st_size, reverse=True)
    for copy in copies[1:]:
        if not filecmp.cmp(copies[0], copy, shallow=False) and not _lines(copy) <= _lines(copies[0]):
            raise UserError(f"{copies[0]} and {copy} have one name and other lines: one of them was changed; remove it")
    return copies[0] if copies else None


def _lines(path: Path) -> set[bytes]:
    """Return the whole lines of a file."""
    return {line for line in lines_of(path) if line.endswith(b"\n")}


def _begins_with(long: Path, short: Path) -> bool:
    """Return whether a file begins with all bytes of another."""
    with long.open("rb") as whole, short.open("rb") as start:
        return all(whole.read(len(chunk)) == chunk for chunk in iter(lambda: start.read(2**20), b""))


def _counting_lines(folders: Sequence[ResultsFolder], files: set[Path], warn: Warn) -> dict[Path, set[int]]:
    """Return the numbers of the lines to take of every rows file in which there are some."""
    counted: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for folder in folders:
        rows = whole_rows(folder.path, COLUMNS, warn)  # all columns: a row with a fault in any is not copied
        records = rows.select(["cell", "sample", *DECIDING, "file", "line"]).to_pylist()
        for key, several in grouped(records, lambda record: (record["cell"], record["sample"])).items():
            code = counting(several)["code"]
            taken = (record for record in several if record["code"] == code and Path(record["file"]) in files)
            counted.setdefault(key, []).extend(taken)
    line_numbers: dict[Path, set[int]] = {}
    for several in filter(None, counted.values()):
        good = [record for record in several if record["error"] is None]
        check_identical(good, "leave one of the folders out")
        first = counting(sorted(good or several, key=lambda record: (Path(record["file"]).name, record["line"])))
        line_numbers.setdefault(Path(first["file"]), set()).add(first["line"])
    return line_numbers


def _copy_rows(file: Path, lines: frozenset[int], merged: ResultsFolder) -> None:
    """Copy these lines of a rows file, and what its writer noted about it as it ended."""
    source = ResultsFolder(file.parent.parent)
    data = b"".join(line for number, line in enumerate(lines_of(file), start=1) if number in lines)
    copy = merged.rows / file.name
    copy.parent.mkdir(exist_ok=True)
    with naming(copy):
        copy.write_bytes(data)
    finished = source.read_finished(file.stem)
    if finished is None:
        return
    if len(data) < file.stat().st_size and finished.crc32 == crc32_of(file):
        finished = Finished(len(lines), f"{zlib.crc32(data):08x}", finished.sidecars)
    merged.write_finished(file.stem, finished)


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Yield a new folder that becomes `target` at the end of the block; if the block fails, nothing of it stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.parent / f".{target.name}-{uuid4().hex}"
    try:
        path.mkdir()
        yield path
        made = path.stat()
        try:
            path.replace(target)
        except OSError as error:
            if target.exists() and os.path.samestat(target.stat(), made):  # a network disk did it and reports an error
                shutil.rmtree(target)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise UserError(f"{target}: {error.strerror}: name a folder that does not exist") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
