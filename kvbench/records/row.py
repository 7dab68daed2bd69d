"""A row: one cell on one sample. Its columns say what was requested, what was measured, and where.

Names and order of columns are fixed. Missing is `None` (JSON null), never 0. A failed sample is a row with `error` and
no `value`. A line has `schema`, the version of its columns.

A line ends with its checksum, the CRC-32 of the bytes before in hex: `{"schema": 1, ..., "checksum": "0f1e2d3c"}`. It
finds every change of one bit and of up to 32 neighbouring bits, and all but one of 2**32 other damages.
"""

import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from kvbench.support.errors import JSON_KINDS, UserError

SCHEMA = 1
"""The version of the columns."""
NO_SOURCE = "no source"
"""The `code` of a row where the sources of kvbench, or of a plugin, cannot be read."""
LARGEST_NUMBER = 1e100
"""No measurement is larger, and the squares of such numbers are still numbers."""
CHECKSUM = b', "checksum": "%08x"}'
END = len(CHECKSUM % 0)
"""The end of a line, and its length in bytes."""
SHARE = "share"
"""The `unit` of values in 0..1, which are printed in %."""
HIGHER, LOWER = "higher", "lower"
"""What `better` can be."""
WHOLE, CUT = "whole", "cut"
"""What `reasoning` can be: an answer follows it, or the answer ended within it."""
LIMIT = "limit"
"""The `ended` of answers that reached their longest length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One JSON object a line of a rows file. `kvbench.records.meanings` has the meaning of each column.

    Names end with units: ``*_tokens``, ``*_bytes``, ``*_seconds``, ``*_fraction`` (0..1). A task declares ``unit`` and
    ``better`` with its ``metric``.

    Raises ValueError for a column of the wrong type, a number that JSON cannot hold (NaN, infinity) or that is larger
    than `LARGEST_NUMBER`, a share outside 0..1, and an unknown direction.
    """

    # requested
    cell: str
    sample: int
    model: str
    task: str
    task_version: str | None
    context_length: int | None
    policy: str
    score: str | None
    budget: str
    variant: str | None
    protocol: str | None = None
    layout: str | None
    schedule: str | None
    seed: int | None
    # measured
    prompt_tokens: int | None = None
    kept_tokens: float | None = None
    kept_fraction: float | None = None
    local_layers: int | None = None
    cache_bytes: int | None = None
    full_cache_bytes: int | None = None
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    read_bytes: int | None = None
    index_bytes: int | None = None
    store: str | None = None
    weights: str | None = None
    prefill_seconds: float | None = None
    evict_seconds: float | None = None
    decode_seconds: float | None = None
    first_token_seconds: float | None = None
    production_seconds: float | None = None
    new_tokens: int | None = None
    reasoning_tokens: int | None = None
    reasoning: str | None = None
    ended: str | None = None
    decode_evictions: int | None = None
    prediction: str | None = None
    metric: str | None = None
    unit: str | None = None
    better: str | None = None
    value: float | None = None
    error: str | None = None
    prompt_sha256: str | None = None
    context_sha256: str | None = None
    question_number: int | None = None
    border_tokens: int | None = None
    recurrent_layers: int | None = None
    recurrent_bytes: int | None = None
    output_sha256: str | None = None
    kept_sha256: str | None = None
    top2_margin: float | None = None
    # where
    environment: str | None = None
    code: str | None = None
    replaces: int | None = None

    def __post_init__(self) -> None:
        for name, kinds in _EXACT.items():
            item = getattr(self, name)
            kind = type(item)
            is_plain = (
                abs(item) <= LARGEST_NUMBER if kind is float else -(2**63) <= item < 2**63 if kind is int else True
            )
            if kind not in kinds or not is_plain:
                object.__setattr__(self, name, _checked(name, item))
        if self.error is not None and self.value is not None:
            raise UserError(f"row has both an error ({self.error!r}) and a value ({self.value!r}): it must have one")
        if self.unit == SHARE and self.value is not None and not 0.0 <= self.value <= 1.0:
            raise UserError(f"row column 'value' is {self.value!r}; {self.metric} is a share in 0..1")
        if self.kept_fraction is not None and not 0.0 <= self.kept_fraction <= 1.0:
            raise UserError(f"row column 'kept_fraction' is {self.kept_fraction!r}; it is a share in 0..1")
        if self.better not in (None, HIGHER, LOWER):
            raise UserError(f"row column 'better' is {self.better!r}; allowed: {HIGHER}, {LOWER}")

    def to_json(self) -> str:
        """Return one line of strict JSON in ASCII without its newline: schema, columns in order, checksum."""
        columns = {name: getattr(self, name) for name in COLUMNS}
        return with_checksum(json.dumps({"schema": SCHEMA} | columns, allow_nan=False))

    @classmethod
    def from_json(cls, line: str | bytes) -> "Row":
        """Read the row of one line. A missing column is None; an unknown column is ignored.

        Raises ValueError for text that is no strict JSON object, for bytes that differ from the checksum or have none,
        for a newer schema (`NewerSchema`), and for columns of the wrong type.
        """
        line = (line.encode() if isinstance(line, str) else line).removesuffix(b"\n")
        try:
            data = json.loads(line, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        except RecursionError:
            raise UserError("a row must be a JSON object of plain values, this one is nested too deeply") from None
        if not isinstance(data, dict):
            raise UserError(f"a row must be a JSON object, not {JSON_KINDS[type(data)]}")
        if not has_checksum(line):
            raise UserError("its bytes do not match its checksum" + ", converted for Windows" * line.endswith(b"\r"))
        check_schema(data.get("schema"))
        columns: dict[str, Any] = {name: data.get(name) for name in COLUMNS}
        return cls(**columns)

    def outcome(self) -> dict[str, Any]:
        """Return all columns except seconds and `WHERE`: what identical runs must have in common."""
        skipped = {name for name in COLUMNS if name.endswith("_seconds")} | set(WHERE)
        return {name: getattr(self, name) for name in COLUMNS if name not in skipped}


class NewerSchema(UserError):
    """Rows of a later kvbench: no damage."""


def check_schema(version: Any) -> None:
    """Raise ValueError for a schema that this version of kvbench cannot read; NewerSchema if a later one can."""
    if isinstance(version, bool) or not isinstance(version, int) or version != SCHEMA:
        is_newer = isinstance(version, int) and version > SCHEMA
        reads = f"schema {version!r}; this kvbench reads schema {SCHEMA}: update it to read newer rows"
        raise NewerSchema(reads) if is_newer else UserError(reads)


def with_checksum(text: str) -> str:
    """Return a JSON object in ASCII with the checksum of its bytes as its last member."""
    data = text[:-1].encode("ascii")
    return (data + CHECKSUM % zlib.crc32(data)).decode()


def has_checksum(line: bytes) -> bool:
    """Return whether a line, without its newline, ends with the checksum of the bytes before."""
    return line[-END:] == CHECKSUM % zlib.crc32(line[:-END])


def _checked(name: str, item: Any) -> Any:
    """Return the value of a column: finite, of its type, a float in a float column (1 and 1.0 give one line)."""
    kind = TYPES[name]
    if isinstance(item, int) and not isinstance(item, bool) and isinstance(0.0, kind):
        item = float(item) if abs(item) < 2**1000 else math.inf
    if isinstance(item, bool) or not isinstance(item, kind):
        expected = kind.__name__ if isinstance(kind, type) else str(kind)
        raise UserError(f"row column {name!r} is {item!r} ({type(item).__name__}); it must be {expected}")
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        raise UserError(f"row column {name!r} is {item!r}; an integer has 64 bits")
    if isinstance(item, float) and not math.isfinite(item):
        raise UserError(f"row column {name!r} is {item!r}; a number must be finite, a missing one is None")
    if isinstance(item, float) and abs(item) > LARGEST_NUMBER:
        raise UserError(f"row column {name!r} is {item!r}; no number is larger than {LARGEST_NUMBER:g}")
    return item


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError for a name that it has twice, of which JSON would take the last."""
    content: dict[str, Any] = {}
    for name, item in pairs:
        if name in content:
            raise UserError(f"it has the column {name!r} twice")
        content[name] = item
    return content


def _refuse_constant(name: str) -> Any:
    raise UserError(f"{name} is not JSON; a missing number is null")


TYPES: dict[str, Any] = {field.name: field.type for field in fields(Row)}
_EXACT = {
    name: {exact for exact in (str, int, float, type(None)) if isinstance(exact(), kind)}
    for name, kind in TYPES.items()
}
"""The types of each column: a value of one of them, in its range, is stored as it is."""
COLUMNS: tuple[str, ...] = tuple(TYPES)
REQUESTED: tuple[str, ...] = COLUMNS[: COLUMNS.index("prompt_tokens")]
MEASURED: tuple[str, ...] = COLUMNS[len(REQUESTED) : COLUMNS.index("environment")]
WHERE: tuple[str, ...] = COLUMNS[len(REQUESTED) + len(MEASURED) :]
