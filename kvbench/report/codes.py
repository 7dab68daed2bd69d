"""Which code made rows: two versions of it are never averaged, or set side by side, without a word."""

from collections import Counter
from collections.abc import Callable, Mapping

import pyarrow as pa

from kvbench.records import NO_SOURCE
from kvbench.records.lines import Warn
from kvbench.support.quantity import count_noun, shortened

ReadCode = Callable[[str], Mapping[str, str] | None]
"""The hashes of the parts of some code by its name, or None if they were not kept."""
_LISTED = 3


def versions(rows: pa.Table, read_code: ReadCode) -> dict[str, Counter[str]]:
    """Return how many rows each version of each part of the code made, by the name of the part and its hash.

    Where the parts of some code are not known, it counts as a part of its cell. Rows of unknown code are left out.
    """
    parts: dict[str, Counter[str]] = {}
    for cell, code, count in _counted(rows):
        if code is not None:
            for name, version in (read_code(code) or {f"the code of cell {cell}": code}).items():
                parts.setdefault(name, Counter())[version[:12]] += count
    return parts


def tell_codes(source: str, rows: pa.Table, read_code: ReadCode, warn: Warn) -> None:
    """Warn of rows of several versions of the code, of means over them, and of rows that do not say which made them."""
    counted = _counted(rows)
    unknown = sum(count for _, code, count in counted if code is None)
    if unknown:
        which = f"{unknown} of {count_noun(rows.num_rows, 'row')} do" if unknown < rows.num_rows else "its rows do"
        warn(f"{source}: {which} not say which code made them")
    differ = {name: by_code for name, by_code in versions(rows, read_code).items() if len(by_code) > 1}
    if not differ:
        return
    cells = Counter(cell for cell, code, _ in counted if code is not None)
    mixed = sorted(cell for cell, codes in cells.items() if codes > 1)
    texts = []
    for name, by_code in sorted(differ.items()):
        counts = [f"{version}: {count_noun(count, 'row')}" for version, count in by_code.most_common()]
        texts.append(f"{name} ({', '.join(counts)})")
    means = ""
    if mixed:
        codes = [code for cell, code, _ in counted if cell in mixed and code is not None]
        means = (
            f"; the means of {count_noun(len(mixed), 'cell')} are over several: choose one with code=, of "
            f"{shortened(list(dict.fromkeys(codes)), _LISTED)}, or make rows again with kvbench run --stale=rerun"
        )
    warn(f"{source}: rows of several versions of the code: {shortened(texts, _LISTED)}{means}")


def _counted(rows: pa.Table) -> list[tuple[str, str | None, int]]:
    """Cell, code (None: unknown) and number of rows."""
    groups = rows.select(["cell", "code"]).group_by(["cell", "code"], use_threads=False).aggregate([([], "count_all")])
    codes = (None if code == NO_SOURCE else code for code in groups["code"].to_pylist())
    return list(zip(groups["cell"].to_pylist(), codes, groups["count_all"].to_pylist(), strict=True))
