"""RULER's keys, `adjective-noun`, and its common words, from the lists of wonderwords 2.2.0.

Another release of wonderwords holds other words (3.0.1 has 6782 nouns, 2.2.0 has 6786), and then every key and every
later draw differs: another benchmark under the same name. Official file: scripts/data/synthetic/niah.py at
NVIDIA/RULER c3f5e3b, which draws from the sorted list of all 6.18 million combinations; here that list is computed
on demand, because it takes 800 MB.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from itertools import accumulate

from kvbench.support.errors import UserError

WONDERWORDS = "2.2.0"


class SortedProduct(Sequence[str]):
    """`sorted({f"{left}-{right}" for left in lefts for right in rights})`, computed on demand.

    Entries of two lefts have the order of the lefts (each with its hyphen) unless one is a prefix of the other
    ("teeny-" and "teeny-tiny-"): only the entries of such families are stored.
    """

    def __init__(self, lefts: Sequence[str], rights: Sequence[str]):
        self._rights, families = sorted(set(rights)), list[list[str]]()
        for left in sorted(f"{left}-" for left in set(lefts)):
            if families and left.startswith(families[-1][0]):
                families[-1].append(left)
            else:
                families.append([left])
        self._blocks = [
            family[0] if len(family) == 1 else sorted({left + right for left in family for right in self._rights})
            for family in families
        ]
        sizes = (len(self._rights) if isinstance(block, str) else len(block) for block in self._blocks)
        self._ends = list(accumulate(sizes))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect_right(self._ends, index)
        within, block = index - self._ends[at], self._blocks[at]  # counted back from the end of the block
        return block + self._rights[within] if isinstance(block, str) else block[within]


@cache
def keys() -> Sequence[str]:
    """Return all distinct keys `adjective-noun`, sorted. Raises UserError unless wonderwords 2.2.0 is installed."""
    return SortedProduct(_lines("adjectivelist.txt"), _lines("nounlist.txt"))


@cache
def words() -> tuple[str, ...]:
    """Return all 8169 distinct nouns, adjectives and verbs, sorted, for common words. Raises as `keys` does."""
    return tuple(sorted({word for name in ("nounlist", "adjectivelist", "verblist") for word in _lines(f"{name}.txt")}))


def _lines(name: str) -> list[str]:
    try:
        installed = version("wonderwords")
    except PackageNotFoundError:
        installed = None
    if installed != WONDERWORDS:
        raise UserError(
            f"RULER's keys are defined by the word lists of wonderwords {WONDERWORDS}, "
            f"found {installed or 'none installed'}; run: pip install wonderwords=={WONDERWORDS}"
        )
    return [
        line.rstrip() for line in files("wonderwords.assets").joinpath(name).read_text(encoding="utf-8").splitlines()
    ]
