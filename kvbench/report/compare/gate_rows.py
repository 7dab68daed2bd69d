"""What the gate checks row by row: the prompt, its tokens, the kept set and the bytes of a row and of its baseline."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kvbench.records import Row
from kvbench.report.stats.pairing import Match
from kvbench.report.tables.quantity import size

_COLUMNS = {
    "prompts": "prompt_sha256",
    "tokens": "prompt_tokens",
    "kept sets": "kept_sha256",
    "bytes": "cache_bytes",
}
"""The column that a check looks at."""


def _differ(a: Row, b: Row, name: str) -> bool:
    """Whether a row that did not fail has another value than its baseline, or none any more."""
    return b.error is None and getattr(a, name) is not None and getattr(a, name) != getattr(b, name)


def _above(a: Row, b: Row) -> bool:
    """Whether more bytes are held than the budget of the baseline allows.

    The budget in bytes is what the baseline held; where the current run keeps fewer pairs (``full_cache_bytes`` x
    ``kept_fraction``), it shrinks with them. So keeping more pairs fails, keeping them in a wider type fails, and
    keeping fewer without letting go of their memory fails too.
    """
    if b.error is not None or a.cache_bytes is None:
        return False
    if b.cache_bytes is None:
        return True
    allowed = float(a.cache_bytes)
    if None not in (a.full_cache_bytes, a.kept_fraction, b.full_cache_bytes, b.kept_fraction):
        needed = [float(row.full_cache_bytes or 0) * float(row.kept_fraction or 0) for row in (a, b)]
        if 0 < needed[1] < needed[0]:
            allowed *= needed[1] / needed[0]
    return b.cache_bytes > allowed * (1 + 1e-6)


BY_ROW: Mapping[str, Callable[[Row, Row], bool]] = {
    **{name: partial(_differ, name=column) for name, column in _COLUMNS.items() if name != "bytes"},
    "bytes": _above,
}
"""For every check whether a row of the current run fails it, given that of the baseline."""


def looked_at(name: str, match: Match) -> bool:
    """Whether a check has anything to look at in a cell."""
    if name not in _COLUMNS:
        return name == "present" or bool(match.pairs)
    return any(b.error is None and getattr(a, _COLUMNS[name]) is not None for a, b in match.both)


def told(name: str, changed: Sequence[tuple[Row, Row]], n: int) -> str:
    """What is said of the rows of a cell that fail a check, of ``n`` that were compared."""
    a, b = changed[0]
    before, after = (getattr(row, _COLUMNS[name]) for row in (a, b))
    if after is None:
        return f"{len(changed)} of {n} rows no longer record {_COLUMNS[name]}"
    if name in ("tokens", "bytes"):
        if name == "bytes":
            short = [size([count]) for count in (before, after)]
            before, after = short if short[0] != short[1] else [f"{count} B" for count in (before, after)]
        kept = f" at {100 * (a.kept_fraction or 0):.1f} % -> {100 * (b.kept_fraction or 0):.1f} % kept"
        first = f"; first: {before} -> {after}{kept if name == 'bytes' else ''}"
        return f"{name} of {len(changed)} of {n} rows {'are above budget' if name == 'bytes' else 'changed'}{first}"
    return f"{name} of {len(changed)} of {n} rows changed"


def not_recorded(matches: Sequence[Match]) -> list[str]:
    """Columns that the baseline does not have, so that nothing could be checked."""
    rows = [row for match in matches for row, _ in match.both if row.error is None]
    counts = {name: sum(getattr(row, name) is None for row in rows) for name in _COLUMNS.values()}
    return [f"not checked: {count} rows of the baseline have no {name}" for name, count in counts.items() if count]
