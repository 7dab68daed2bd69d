"""What is fetched becomes what tasks read: members of archives, tables of prompts, rows as lines of JSON.

Nothing that is fetched is executed, and no name inside it decides where something is written.
"""

import ast
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.data import rows
from kvbench.tasks.data.lock import Download, Output
from kvbench.tasks.data.trouble import FULL, Unobtained, full

LARGEST_RATIO = 100
"""Bytes that an archive may grow to, per byte of it: texts shrink to a fifth, a bomb to a thousandth."""


def make(download: Download, fetched: Path, work: Path) -> Iterator[tuple[Output, Path]]:
    """Yield every output of a download with a file in `work` that holds it; the fetched file itself where it is one.

    Raises:
        Unobtained: the file is not what its kind says.
        Full: the disk is.
    """
    try:
        if download.kind == "zip":
            yield from _members(download, fetched, work)
            return
        (output,) = download.outputs
        if download.kind in ("file", "index"):
            yield output, fetched
            return
        made = work / f"{fetched.stem}.made"
        match download.kind:
            case "prompts":
                made.write_text(json.dumps(tables(fetched.read_text("utf-8")), ensure_ascii=False, indent=1), "utf-8")
            case "parquet":
                _lines(made, rows.of_parquet(fetched))
            case "csv":
                _lines(made, rows.of_csv(fetched))
            case "squad":
                _lines(made, rows.of_squad(fetched))
        yield output, made
    except OSError as error:
        if error.errno in FULL:
            raise full(work.parent, error) from None
        raise
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise Unobtained(f"{download.origin} is no whole {download.kind} file: {error}") from None


def tables(program: str) -> dict[str, dict[str, str]]:
    """The tables of texts that a Python file assigns to names, read from its syntax and never run.

    `"a" + "b"` is joined; what is no text, and what is no table, is left out. Raises ValueError where there is none.
    """
    found = {}
    try:
        statements = ast.parse(program).body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise UserError(f"it is no Python: {error}") from None
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys, values=values)):
                texts = {_text(key): _text(value) for key, value in zip(keys, values, strict=True)}
                found[name] = {key: text for key, text in texts.items() if key is not None and text is not None}
    if not any(found.values()):
        raise UserError("it assigns no table of texts")
    return found


def _text(node: ast.expr | None) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = _text(left), _text(right)
            return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    return None


def _members(download: Download, fetched: Path, work: Path) -> Iterator[tuple[Output, Path]]:
    with zipfile.ZipFile(fetched) as archive:
        members = {info.filename: info for info in archive.infolist()}
        for name in members:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name.replace("\\", "/")).parts:
                raise UserError(f"its member {name[:80]!r} points out of the archive")
        whole, most = sum(info.file_size for info in members.values()), LARGEST_RATIO * fetched.stat().st_size
        if whole > most:
            raise UserError(f"it would grow to {whole} bytes, more than {LARGEST_RATIO} times its own")
        for output in download.outputs:
            if output.member not in members:
                raise UserError(f"it has no member {output.member}")
        for number, output in enumerate(download.outputs):
            made = work / f"{fetched.stem}.{number}.made"
            with archive.open(members[output.member]) as member, made.open("wb") as file:
                while chunk := member.read(1 << 20):
                    file.write(chunk)
            yield output, made


def _lines(made: Path, content: Iterable[Mapping[str, Any]]) -> None:
    with made.open("w", encoding="utf-8") as file:
        for row in content:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
