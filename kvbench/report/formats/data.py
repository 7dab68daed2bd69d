"""Records for programs: CSV and JSON.

CSV is as in RFC 4180, with a bare newline at the end of a line; a missing value is blank. A spreadsheet takes a text
that begins with = + - or @ for a formula, which may read files and send them away; such a text gets an apostrophe
before it, which marks text in spreadsheets (https://owasp.org/www-community/attacks/CSV_Injection). A text that is a
number stays as it is. A line that GitHub Actions would take for a command (::error ...) gets one too. JSON is lossless,
but for NaN and infinity, which are null.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from kvbench.support.text import printable

_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r]")
_COMMAND = re.compile(r"(?m)(^|[\r\u2028\u2029])(\s*)(::|##\[)")
"""How a line begins that a runner of GitHub Actions takes for a command when a job prints it."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_records(records: Sequence[Mapping[str, Any]], out: TextIO, columns: Sequence[str] | None = None) -> None:
    """Write records as CSV with these columns, by default all names."""
    names = columns or list(dict.fromkeys(name for record in records for name in record))
    write_csv([names, *([record.get(name) for name in names] for record in records)], out)


def finite(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return records as JSON can hold them."""
    return [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in each.items()}
        for each in records
    ]


def write_json(value: Any, out: TextIO) -> None:
    """Write a value as JSON. Raises ValueError for NaN and infinity."""
    json.dump(value, out, indent=1, allow_nan=False)
    out.write("\n")


def write_csv(lines: Iterable[Iterable[Any]], out: TextIO) -> None:
    """Lines of values, numbers with all digits; none of their texts is a formula or a command of GitHub Actions."""
    for line in lines:
        out.write(",".join(map(_field, line)) + "\n")


def _field(value: Any) -> str:
    """Return a value as a field, invisible characters but tabs and line ends as escapes.

    Quoted here, because csv.writer before Python 3.13 leaves a lone carriage return bare.
    """
    if not isinstance(value, str):
        return "" if value is None else str(value)
    text = printable(value, keep="\t\r\n\u2028\u2029")
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    text = _COMMAND.sub(r"\1\2'\3", text)
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text
