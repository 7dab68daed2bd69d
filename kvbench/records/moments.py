"""When rows were made: between the start and the last heartbeat of the process that wrote their file.

Rows have no clock of their own. A Parquet file keeps what was known as it was written, cell by cell. Rows that no
process of their folder wrote, as those that were unpacked, have no moment, and nobody can say that they are new.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from kvbench.records.folder import ResultsFolder
from kvbench.records.processes import Process, read_processes
from kvbench.support.errors import UserError
from kvbench.support.grouped import grouped

_WRITER = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-(.+)-\d+")
"""The name of a file that a process made: the moment, and the host and number of the process."""
_SPANS = b"kvbench.made"
"""Metadata of a Parquet file: by cell the first and the last moment, as JSON."""
_LONGEST_SILENCE = 3600.0
"""Seconds after its last heartbeat in which a file may still belong to a process."""


@dataclass(frozen=True)
class Span:
    """The first and the last moment at which rows may have been made."""

    first: datetime
    last: datetime

    @classmethod
    def over(cls, spans: Iterable["Span | None"]) -> "Span | None":
        """Return the shortest that holds all; None for none, and where one is not known."""
        known = list(spans)
        held = [span for span in known if span is not None]
        if not held or len(held) < len(known):
            return None
        return cls(min(span.first for span in held), max(span.last for span in held))


def spans_of(source: Path, rows: pa.Table) -> dict[str, Span]:
    """Return when the rows of each cell of a folder or a Parquet file were made; without cells of which a row has no
    moment.

    rows: with ``cell`` and ``file``. Raises UserError for a Parquet file whose moments cannot be read.
    """
    return _kept(source) if source.is_file() else _of_folder(source, rows)


def as_metadata(spans: Mapping[str, Span]) -> dict[bytes, bytes]:
    """Return moments as metadata of a Parquet file."""
    return {_SPANS: json.dumps(texts_of(spans), sort_keys=True).encode()} if spans else {}


def texts_of(spans: Mapping[str, Span]) -> dict[str, list[str]]:
    """Return moments as texts, which `from_texts` reads."""
    return {cell: [span.first.isoformat(), span.last.isoformat()] for cell, span in spans.items()}


def from_texts(texts: Mapping[str, Iterable[str]]) -> dict[str, Span]:
    """Return the moments of texts. Raises ValueError for one that is no moment."""
    return {cell: Span(*map(_moment, pair)) for cell, pair in texts.items()}


def _kept(file: Path) -> dict[str, Span]:
    try:
        text = (pyarrow.parquet.read_metadata(file).metadata or {}).get(_SPANS, b"{}")
        return from_texts(json.loads(text))
    except (ValueError, TypeError, AttributeError, OSError, pa.ArrowException, RecursionError) as error:
        raise UserError(f"{file}: when its rows were made cannot be read: {' '.join(str(error).split())}") from None


def _of_folder(folder: Path, rows: pa.Table) -> dict[str, Span]:
    processes = read_processes(ResultsFolder(folder))
    named = rows.select(["cell", "file"]).unify_dictionaries()  # every file has one of its own
    pairs = named.group_by(["cell", "file"]).aggregate([]).to_pylist()
    written = {file: _span(Path(file).stem, processes) for file in {pair["file"] for pair in pairs}}
    spans = {
        cell: Span.over(written[pair["file"]] for pair in members)
        for cell, members in grouped(pairs, lambda pair: pair["cell"]).items()
    }
    return {cell: span for cell, span in spans.items() if span is not None}


def _span(name: str, processes: Iterable[Process]) -> Span | None:
    """Return the span of the process that made a file of rows: it has its host and number, and ran at that moment."""
    if (made := _WRITER.fullmatch(name)) is None:
        return None
    moment = datetime.strptime(made[1], "%Y%m%dT%H%M%S.%f%z")
    for process in processes:
        writer = _WRITER.fullmatch(process.name)
        if writer is not None and writer[2] == made[2]:
            with suppress(ValueError):  # a time that is none
                span = Span(_moment(process.started_utc), _moment(process.beat_utc))
                silence = timedelta(seconds=min(process.lease_seconds, _LONGEST_SILENCE))  # it may have been killed
                if span.first <= moment <= span.last + silence:
                    return span
    return None


def _moment(text: str) -> datetime:
    """Raise ValueError for a text without a time zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return moment
