"""The two sides of a comparison from the words of a command line.

`DIR_A DIR_B`, all rows of two folders; with one selection, what it selects of both; with two, what the first selects of
A and the second of B. Two selections without folders: both of one folder. A selection is `key=value[,value][,key=...]`:
a comma begins the next condition where `key=` follows it, and another value of the same key where none does.
"""

from collections.abc import Callable, Sequence

from kvbench.report.loading import describer, load
from kvbench.report.stats.pairing import Side
from kvbench.report.tables.where import NothingSelected, Where, check_where
from kvbench.support.errors import UserError

Warn = Callable[[str], None]


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


def sides(words: Sequence[str], results: str | None, warn: Warn) -> tuple[Side, Side]:
    """Both sides with their rows. ``results``: the folder of two selections, None where it was not named.

    Raises ValueError for words that are not two sides, FileNotFoundError where a folder has no rows, NothingSelected
    where a side has none.
    """
    folders = [word for word in words if not is_selection(word)]
    selections = [word for word in words if is_selection(word)]
    shape = (len(folders), len(selections))
    if (folders and results is not None) or shape not in ((0, 2), (2, 0), (2, 1), (2, 2)):
        named = f"got {' '.join(words)}" if words else "got nothing"
        raise UserError(
            f"compare takes two folders (DIR_A DIR_B, and up to two selections), or --results DIR and two selections "
            f"(policy=snapkv,score=attn policy=snapkv,score=caote); {named}"
        )
    if not folders:
        folder = results or "results/runs"
        first, second = (side(text, folder, text, warn) for text in selections)
        return first, second
    asked = selections if len(selections) == 2 else (selections or [""]) * 2
    first, second = (
        side(f"{folder} {text}".strip(), folder, text, warn) for folder, text in zip(folders, asked, strict=True)
    )
    return first, second


def side(name: str, folder: str, selection: str, warn: Warn) -> Side:
    """What a selection selects of a folder. Raises what `sides` raises."""
    where: Where = conditions(selection)
    try:
        rows = load(folder, warn, where)
    except NothingSelected as error:
        raise NothingSelected(f"{name}: {error}") from None
    return Side(name, rows, folder, describer(folder))
