"""Downloads become the files that tasks read: members of archives, tables of prompts, rows as lines of JSON.

Nothing that is fetched is executed, and no name inside it decides where something is written.
"""

import ast
import json
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kvbench.support.errors import JSON_KINDS, UserError
from kvbench.support.named import member
from kvbench.support.parquet import LARGEST_RATIO, check_growth
from kvbench.tasks.csv_rows import csv_rows
from kvbench.tasks.data.download import Unobtained
from kvbench.tasks.data.lock import AS_THEY_ARE, Download, Output

GROUP = "convert"
"""Extras bring kinds in this group: modules with `check()`, and `unpack(fetched, folder)`, which writes all members."""
INVALID = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)
"""What the libraries raise for a file that is not of its kind."""
SMALL, CHUNK = 2**20, 2**20
"""Bytes that converted files may always have, and bytes that are copied at a time."""


def check_installed(download: Download) -> None:
    """Raise Unobtained for a download that cannot be converted here."""
    try:
        if download.kind not in (*AS_THEY_ARE, *KINDS):
            _brought(download).check()
    except UserError as error:
        raise Unobtained(f"{download.origin}: {error}") from None


def convert(download: Download, fetched: Path, work: Path) -> Iterator[tuple[Output, Path]]:
    """Yield every output of a download with its file in `work`, or with the fetched file if that is the output.

    Raises Unobtained for a file that is not of its kind, or grows to more than `LARGEST_RATIO` times its size.
    """
    unpacked, outputs = work / f"{fetched.stem}.made", {output.member: output for output in download.outputs}
    bytes_left = max(SMALL, LARGEST_RATIO * fetched.stat().st_size)
    try:
        if download.kind in AS_THEY_ARE:
            yield download.outputs[0], fetched
            return
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir()
        if download.kind not in KINDS:
            _brought(download).unpack(fetched, unpacked)
            yield from ((output, unpacked / name) for name, output in outputs.items())
            return
        for name, content in KINDS[download.kind](fetched, list(outputs)):
            file, output = unpacked / str(len(outputs)), outputs.pop(name)
            with file.open("wb") as copy:
                for chunk in content:
                    if (bytes_left := bytes_left - len(chunk)) < 0:
                        raise UserError(f"it would grow to more than {LARGEST_RATIO} times its own size")
                    copy.write(chunk)
            yield output, file
        if outputs:
            raise UserError(f"it has no member {next(iter(outputs))}")
    except INVALID as error:
        raise Unobtained(f"{download.origin} is not a valid {download.kind} file: {error}") from None


def _brought(download: Download) -> Any:
    """Return the module of an extra that unpacks a kind. Raises UserError if there is none."""
    if (found := member(GROUP, download.kind)) is None:
        raise UserError(f"no extra unpacks files of the kind {download.kind}")
    return found.load()


def tables(program: str) -> dict[str, dict[str, str]]:
    """Return the tables of texts that a Python file assigns to names, read from its syntax: `"a" + "b"` is joined.

    Other values and other statements are ignored. Raises UserError if there is no table.
    """
    tables = {}
    try:
        statements = ast.parse(program).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise UserError(f"it is not Python: {error}") from None
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys, values=values)):
                texts = {_text(key): _text(value) for key, value in zip(keys, values, strict=True)}
                tables[name] = {key: text for key, text in texts.items() if key is not None and text is not None}
    if not any(tables.values()):
        raise UserError("it assigns no table of texts")
    return tables


def _text(node: ast.expr | None) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = _text(left), _text(right)
            return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    return None


Contents = Iterator[tuple[str, Iterable[bytes]]]
"""Names of members, each with its content; a file without members has one of them."""


def _zip_members(fetched: Path, names: list[str]) -> Contents:
    with zipfile.ZipFile(fetched) as archive:
        for name in filter({*archive.namelist()}.__contains__, names):
            with archive.open(name) as content:
                yield name, iter(partial(content.read, CHUNK), b"")


def _tar_members(fetched: Path, names: list[str]) -> Contents:
    """Yield members in the order of the archive, which is read once."""
    wanted = {*names}
    with tarfile.open(fetched, "r|*") as archive:
        for entry in archive:
            if entry.name in wanted and (content := archive.extractfile(entry)):
                wanted.remove(entry.name)
                yield entry.name, iter(partial(content.read, CHUNK), b"")


def _prompts(fetched: Path, names: list[str]) -> Contents:
    yield names[0], [json.dumps(tables(fetched.read_text("utf-8")), ensure_ascii=False, indent=1).encode()]


def _lines(rows: Callable[[Path], Iterable[Any]]) -> Callable[[Path, list[str]], Contents]:
    """Return what makes each row a line of JSON."""

    def contents(fetched: Path, names: list[str]) -> Contents:
        yield names[0], (f"{json.dumps(row, ensure_ascii=False)}\n".encode() for row in rows(fetched))

    return contents


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        check_growth(file.read_bytes())
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=16):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(str(error).splitlines()[0]) from None


def _list_rows(file: Path) -> list[Any]:
    content = json.loads(file.read_text("utf-8"))
    if not isinstance(content, list):
        raise UserError(f"it holds {JSON_KINDS[type(content)]}, not a list of rows")
    return content


def _squad_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield every question of a SQuAD 1.1 file with its paragraph, as the rows of rajpurkar/squad on the hub."""
    content = json.loads(file.read_text("utf-8"))
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    answers = {key: [answer[key] for answer in entry["answers"]] for key in ("text", "answer_start")}
                    row = {"id": entry["id"], "title": article.get("title", ""), "context": paragraph["context"]}
                    yield row | {"question": entry["question"], "answers": answers}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it is not a SQuAD file: {type(error).__name__}: {error}") from None


KINDS: Mapping[str, Callable[[Path, list[str]], Contents]] = {
    "zip": _zip_members,
    "tar": _tar_members,
    "prompts": _prompts,
    "parquet": _lines(_parquet_rows),
    "csv": _lines(csv_rows),
    "squad": _lines(_squad_rows),
    "list": _lines(_list_rows),
}
"""Kinds that are converted here."""
