"""The selection of rows: `task=ruler/*,longbench/* budget=0.1`, by any column of a row and any setting of its cell."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa

from kvbench.records import COLUMNS
from kvbench.records.rows import Describe
from kvbench.report.settings_files import left_out, short
from kvbench.support.errors import NothingSelected, UserError
from kvbench.support.quantity import shortened
from kvbench.support.text import closest

Where = Mapping[str, Sequence[str]]
FULL_CACHE = {"policy": "full", "score": "null", "budget": "1.0"}
"""What selects the rows of the full cache."""
_LISTED = 12


def check_where(where: Where) -> None:
    """Raise ValueError for keys that no row can have and for keys without a value."""
    for key, values in where.items():
        if key not in COLUMNS and not is_setting(key):
            keys_text = f"{closest(key, COLUMNS)}; or a setting of cells, such as policy.window"
            raise UserError(f"{key}={','.join(values)}: rows have no column {key!r}: {keys_text}")
        if not all(values):
            raise UserError(f"{key}= has no value; name one or more, separated by commas")


def select(rows: pa.Table, where: Where, describe: Describe, warn: Callable[[str], None]) -> pa.Table:
    """Return the rows that have one of the values of every key; ``*`` and ``?`` stand for any text, any character.

    Raises NothingSelected naming the key at which no row was left. A value that no row has, beside others that some
    have, goes to ``warn``.
    """
    is_selected = np.ones(rows.num_rows, bool)
    for key, patterns in where.items():
        column = rows["cell" if is_setting(key) else key].filter(pa.array(is_selected))
        coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        codes, values = coded.indices.to_numpy(), coded.dictionary.to_pylist()
        texts = [as_typed(setting(describe(value), key) if is_setting(key) else value) for value in values]
        absent = [pattern for pattern in patterns if not any(_matches(pattern, value) for value in texts)]
        nearest_first = sorted(set(texts), key=lambda text: (not text.startswith(tuple(absent)), text))
        present = f"the rows have {shortened(nearest_first, _LISTED)}"
        if len(absent) == len(patterns):
            hint = _whole_labels(rows["policy"].unique().to_pylist(), where["policy"]) if "policy" in where else ""
            raise NothingSelected(f"no row has {key}={','.join(patterns)}; {present}{hint}")
        for pattern in absent:
            warn(f"no row has {key}={pattern}; {present}")
        chosen = [code for code, value in enumerate(texts) if any(_matches(pattern, value) for pattern in patterns)]
        is_selected[is_selected] = np.isin(codes, chosen)
    return rows.filter(pa.array(is_selected)) if where else rows


def without_full_cache(where: Where) -> str:
    """Return the conditions that would select the full cache too; "" where a selection has it, names other policies, or
    names settings of policies and scores, which the full cache does not have.
    """
    left_out = [f"{key}={value}" for key, value in FULL_CACHE.items() if not _selects(where, key, value)]
    is_narrowed = "policy=full" in left_out or any(key.startswith(("policy.", "score.")) for key in where)
    return "" if is_narrowed else " ".join(left_out)


def _selects(where: Where, key: str, value: str) -> bool:
    return key not in where or any(_matches(pattern, value) for pattern in where[key])


def _whole_labels(labels: Sequence[str], patterns: Sequence[str]) -> str:
    """Say what to write for policies that are selected by the first word of longer labels; "" for others."""
    words = (pattern for pattern in patterns if any(label.startswith(f"{pattern} ") for label in labels))
    word = next(words, None)
    return "" if word is None else f"; policy={word} is that label alone, policy.name={word} takes it with any settings"


def as_typed(value: Any) -> str:
    """Return a value as it is written on a command line and in a selection; a missing one is ``null``."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matches(pattern: str, value: str) -> bool:
    """Return whether a value matches a pattern; 0.10 is 0.1, but 1 (a token) is not 1.0 (all); True is true."""
    if fnmatchcase(value, pattern) or (value in ("true", "false") and value == pattern.lower()):
        return True
    is_whole = [not any(mark in number for mark in ".eE") for number in (pattern, value)]
    try:
        return is_whole[0] == is_whole[1] and float(pattern) == float(value)
    except ValueError:
        return False


def flat(description: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a nested description by dotted names: {"policy": {"window": 16}} -> {"policy.window": 16}."""
    leaves: dict[str, Any] = {}
    for key, value in (description or {}).items():
        if isinstance(value, Mapping):
            leaves.update({f"{key}.{name}": leaf for name, leaf in flat(value).items()})
        else:
            leaves[str(key)] = value
    return leaves


def is_setting(key: str) -> bool:
    """Return whether a key of a selection names a setting of cells and no column of rows."""
    return "." in key or key in short()


def setting(description: Mapping[str, Any] | None, key: str) -> Any:
    """Return a setting by its name on the command line, in the description of a cell; None if it has none."""
    leaves, name = flat(description), short().get(key, key)
    value = leaves.get(name)
    return left_out().get(name) if value is None and "policy.name" in leaves else value


def task_settings(description: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings of the task in the description of a cell; none if no description was kept."""
    task = (description or {}).get("task")
    return task if isinstance(task, Mapping) else {}


def common(descriptions: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the settings that all descriptions have with one value, by dotted names; None if one is missing."""
    leaves = [flat(description) for description in descriptions]
    return {k: v for k, v in leaves[0].items() if all(k in other and other[k] == v for other in leaves)} or None


def differences(descriptions: Sequence[Mapping[str, Any] | None]) -> set[str]:
    """Dotted names of the settings that are not the same in all descriptions."""
    leaves = [flat(description) for description in descriptions]
    names = {name for settings in leaves for name in settings}
    return {name for name in names if len({repr(settings.get(name)) for settings in leaves}) > 1}


def conditions(text: str) -> dict[str, tuple[str, ...]]:
    """Read a selection, `key=value[,value][,key=...]`; "" selects everything.

    A comma begins the next condition if `key=` follows it, otherwise another value of the same key. Raises ValueError
    for a word that is not a condition, a key named twice and a key that no row has.
    """
    values: dict[str, list[str]] = {}
    key = ""
    for word in text.split(",") if text else ():
        before, equals, after = word.partition("=")
        if equals:
            key, value = before.strip(), after.strip()
            if key in values:
                raise UserError(f"selection {text!r} names {key!r} twice; list its values: {key}=a,b")
        else:
            value = word.strip()
        if not key or not value:
            raise UserError(f"cannot read selection {text!r}: write key=value[,value][,key=value]")
        values.setdefault(key, []).append(value)
    selection = {key: tuple(members) for key, members in values.items()}
    check_where(selection)
    return selection


def is_selection(word: str) -> bool:
    """Return whether a word of the command line is a selection and no folder."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key
