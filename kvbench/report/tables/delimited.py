"""Comma-separated values as RFC 4180 has them, with a bare newline at the end of a line; missing is blank.

A spreadsheet takes a text that begins with = + - or @ for a formula, which may read files and send them away. Such a
text gets an apostrophe before it, as spreadsheets have it for text (https://owasp.org/www-community/attacks/CSV_Injection).
A number that is text stays as it is. The JSON formats are lossless.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(columns: Sequence[str], items: Iterable[Any], out: TextIO) -> None:
    """One line an item, its attributes (a mapping's values) named by ``columns``; numbers with all their digits."""

    def held(item: Any, name: str) -> Any:
        return item.get(name) if isinstance(item, Mapping) else getattr(item, name)

    write_lines([columns, *([held(item, name) for name in columns] for item in items)], out)


def write_lines(lines: Iterable[Iterable[Any]], out: TextIO) -> None:
    """Lines of values; no text of them is a formula."""
    for line in lines:
        out.write(",".join(map(_field, line)) + "\n")


def _field(value: Any) -> str:
    """A value as a field. Quoted here, because csv.writer before Python 3.13 leaves a lone carriage return bare.

    Half a surrogate pair, which a model can produce, has no UTF-8 form: it is written as an escape.
    """
    if not isinstance(value, str):
        return "" if value is None else str(value)
    text = value.encode("utf-8", "backslashreplace").decode()
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\r\n') else text
