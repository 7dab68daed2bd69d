"""Numbers for people: shares, bytes and seconds, one number or the range of several, short."""

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

THRESHOLD = "threshold:"
"""What a budget that is the least score of a kept pair begins with."""
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BYTES = re.compile(rf"(\d+(?:\.\d+)?)({'|'.join(_BYTE_UNITS)})")


def percent(shares: Iterable[float]) -> str:
    """0.1 -> "10.0 %"; 0.1 and 0.125 -> "10.0-12.5 %"; nothing -> ""."""
    return _range(shares, lambda _: (100.0, 1, "%"))


def size(counts: Iterable[float]) -> str:
    """Bytes in powers of 1024, three significant digits: 52480 -> "51.2 KiB"."""

    def scale(largest: float) -> tuple[float, int, str]:
        power = 0
        while largest >= 999.5 and power + 1 < len(_BYTE_UNITS):
            largest, power = largest / 1024, power + 1
        digits = 0 if power == 0 else _digits(largest, 3)
        return 1024.0**-power, digits, _BYTE_UNITS[power]

    return _range(counts, scale)


def parse_size(text: str) -> int | None:
    """Bytes, rounded down: "600KiB" -> 614400, "1.5GiB" -> 1610612736; None for what is no number with a unit."""
    written = _BYTES.fullmatch(text.strip())
    if written is None:
        return None
    number, unit = written.groups()
    return int(Decimal(number) * 1024 ** _BYTE_UNITS.index(unit))


def duration(seconds: Iterable[float]) -> str:
    """Return seconds or milliseconds: 0.0123 -> "12 ms", 1.234 -> "1.23 s"."""

    def scale(largest: float) -> tuple[float, int, str]:
        if largest < 0.9995:
            return 1e3, _digits(1e3 * largest, 2) if largest else 0, "ms"
        return 1.0, _digits(largest, 3), "s"

    return _range(seconds, scale)


def count_noun(count: int, noun: str) -> str:
    """1, "row" -> "1 row"; 2, "row" -> "2 rows"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def numbered(numbers: Sequence[int], noun: str = "sample", most: int = 5) -> str:
    """[3] -> "sample 3"; [1, 4] -> "samples 1, 4"; after `most` numbers ", ..."."""
    more = ", ..." if len(numbers) > most else ""
    return f"{noun}{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers[:most]))}{more}"


def shortened(texts: Sequence[str], most: int) -> str:
    """Return the first ``most`` texts with commas, and how many more there are: "a, b and 3 more"."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _digits(number: float, significant: int) -> int:
    """Decimals that leave so many significant digits, never more than ``significant - 1``."""
    before_point = len(str(int(number + 0.5))) if number >= 1 else 1
    return max(significant - before_point, 0)


def _range(numbers: Iterable[float], scale: Callable[[float], tuple[float, int, str]]) -> str:
    numbers = sorted(numbers)
    if not numbers:
        return ""
    factor, digits, unit = scale(numbers[-1])
    low, high = (f"{factor * number:.{digits}f}" for number in (numbers[0], numbers[-1]))
    return f"{low} {unit}" if low == high else f"{low}-{high} {unit}"
