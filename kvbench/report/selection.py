"""Which rows a report is about: `task=ruler/*,longbench/* budget=0.1`, by any column and any setting of a cell.

What tells two cells apart that look alike in a table: the settings in which their descriptions differ.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa

from kvbench.records import COLUMNS, Row
from kvbench.support.errors import NothingSelected, UserError
from kvbench.support.text import closest

Where = Mapping[str, Sequence[str]]
Describe = Callable[[str], Mapping[str, Any] | None]
_LISTED = 12


def check_where(where: Where) -> None:
    """Raises ValueError for keys that no row can have and for keys without a value."""
    for key, values in where.items():
        if key not in COLUMNS and "." not in key:
            known = f"{closest(key, COLUMNS)}; or a setting of cells with its dots, like policy.window"
            raise UserError(f"{key}={','.join(values)}: rows have no column {key!r}: {known}")
        if not all(values):
            raise UserError(f"{key}= names no value; name one or more, with commas between")


def select(rows: pa.Table, where: Where, describe: Describe, warn: Callable[[str], None]) -> pa.Table:
    """The rows that have one of the values of every key; ``*`` and ``?`` stand for any text, any letter.

    Raises NothingSelected naming the key at which no row was left; values without a row beside others that have some
    are told to ``warn``.
    """
    for key, values in where.items():
        codes, held = _coded(rows["cell" if "." in key else key])
        there = [text(flat(describe(value)).get(key) if "." in key else value) for value in held]
        absent = [value for value in values if not any(_is(value, found) for found in there)]
        known = f"there {_listed(sorted(set(there)))}"
        if len(absent) == len(values):
            raise NothingSelected(f"no row has {key}={','.join(values)}; {known}")
        for value in absent:
            warn(f"no row has {key}={value}; {known}")
        asked = [code for code, found in enumerate(there) if any(_is(value, found) for value in values)]
        rows = rows.filter(pa.array(np.isin(codes, asked)))
    return rows


def has(row: Row, where: Where, describe: Describe) -> bool:
    """Whether a row has one of the values of every key."""

    def found(key: str) -> str:
        return text(flat(describe(row.cell)).get(key) if "." in key else getattr(row, key))

    return all(any(_is(value, found(key)) for value in values) for key, values in where.items())


def text(value: Any) -> str:
    """A value as it is asked for; a missing one is ``null``."""
    return "null" if value is None else str(value)


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """The distinct values of a column, and for each row the place of its value among them."""
    coded = pa.concat_arrays(column.chunks).dictionary_encode(null_encoding="encode")
    return coded.indices.to_numpy(), coded.dictionary.to_pylist()


def _is(asked: str, found: str) -> bool:
    if fnmatchcase(found, asked):
        return True
    whole = [not any(mark in number for mark in ".eE") for number in (asked, found)]
    try:
        return whole[0] == whole[1] and float(asked) == float(found)
    except ValueError:
        return False


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"is {', '.join(names[:_LISTED])}{more}"


def flat(description: Mapping[str, Any] | None) -> dict[str, Any]:
    """A nested description by dotted names: {"policy": {"window": 16}} -> {"policy.window": 16}."""
    leaves: dict[str, Any] = {}
    for key, value in (description or {}).items():
        if isinstance(value, Mapping):
            leaves.update({f"{key}.{name}": leaf for name, leaf in flat(value).items()})
        else:
            leaves[str(key)] = value
    return leaves


def differences(descriptions: Sequence[Mapping[str, Any] | None]) -> set[str]:
    """Dotted names of the settings that are not the same in all descriptions."""
    leaves = [flat(description) for description in descriptions]
    names = {name for settings in leaves for name in settings}
    return {name for name in names if len({repr(settings.get(name)) for settings in leaves}) > 1}


def conditions(text: str) -> dict[str, tuple[str, ...]]:
    """Read a selection; "" selects everything.

    Raises ValueError for a word that is no condition, a key named twice and a key that no row has.
    """
    found: dict[str, list[str]] = {}
    key = ""
    for word in text.split(",") if text else ():
        before, equals, after = word.partition("=")
        if equals:
            key, value = before.strip(), after.strip()
            if key in found:
                raise UserError(f"selection {text!r} names {key!r} twice; list its values: {key}=a,b")
        else:
            value = word.strip()
        if not key or not value:
            raise UserError(f"cannot read selection {text!r}: write key=value[,value][,key=value]")
        found.setdefault(key, []).append(value)
    selection = {key: tuple(values) for key, values in found.items()}
    check_where(selection)
    return selection


def is_selection(word: str) -> bool:
    """Whether a word of the command line is a selection and no folder."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key
