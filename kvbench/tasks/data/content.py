"""Whether a file whose SHA-256 nobody knows is what its name says, as far as its bytes can tell."""

import json
from pathlib import Path

from kvbench.support.errors import UserError
from kvbench.tasks.jsonl import Line

PAGES = (b"<!doctype html", b"<html")
GZIP = b"\x1f\x8b"


def check_content(file: Path, name: str) -> None:
    """Raise UserError for a file that is empty, a web page, compressed, or not of the kind that its name ends in."""
    with file.open("rb") as content:
        head = content.read(512)
    if not head.strip():
        raise UserError("it is empty")
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(PAGES):
        raise UserError("it is a web page, perhaps of a login or an error")
    if head.startswith(GZIP):
        raise UserError("it is compressed by gzip")
    match Path(name).suffix:
        case ".jsonl":
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        _check_row(number, line)
        case ".json":
            try:
                json.loads(file.read_text("utf-8"))
            except RecursionError:
                raise UserError("it is nested too deeply") from None
        case ".txt" | ".py" | ".md":
            file.read_text("utf-8")
        case ".parquet":
            import pyarrow
            import pyarrow.parquet

            try:
                pyarrow.parquet.read_metadata(file)
            except (pyarrow.ArrowException, OSError) as error:
                raise UserError(str(error).splitlines()[0]) from None


def _check_row(number: int, line: bytes) -> None:
    try:
        Line(number - 1, "", line).read()
    except UserError as error:
        raise UserError(f"line {number}: {error}") from None
