"""Whole pairs from real shares, with a sum that is exact."""

from collections.abc import Sequence
from math import floor

DECIMALS = 9
"""Targets are rounded to so many decimals first, so that noise of their arithmetic decides nothing."""


def largest_remainder(targets: Sequence[int | float], total: int, most: int) -> tuple[int, ...]:
    """Each target's floor, and the units missing from `total` one each by descending fraction, lower index first.

    Entries that hold `most` are passed over. `total` must fit: at most `most` an entry.
    """
    assert total <= most * len(targets), f"{total} pairs in {len(targets)} entries of {most}"
    rounded = [round(target, DECIMALS) for target in targets]
    counts = [min(most, floor(target)) for target in rounded]
    fractions = [round(target - floor(target), DECIMALS) for target in rounded]
    by_fraction = sorted(range(len(targets)), key=lambda index: (-fractions[index], index))
    while (missing := total - sum(counts)) > 0:
        for index in [index for index in by_fraction if counts[index] < most][:missing]:
            counts[index] += 1
    assert sum(counts) == total, f"targets {rounded} exceed {total}"
    return tuple(counts)


def shares(total: int, weights: Sequence[int | float], most: int) -> tuple[int, ...]:
    """Split `total` in proportion to `weights`, at most `most` an entry, by largest remainder.

    What an entry cannot take is shared again among the others. Weights that are all zero count as equal.
    """
    targets = [0.0] * len(weights)
    left, open_entries = float(total), list(range(len(weights)))
    while open_entries:
        mass = sum(weights[index] for index in open_entries)
        for index in open_entries:
            targets[index] = left * (weights[index] / mass if mass > 0 else 1 / len(open_entries))
        full = [index for index in open_entries if targets[index] > most]
        if not full:
            break
        for index in full:
            targets[index] = float(most)
        left -= most * len(full)
        open_entries = [index for index in open_entries if index not in full]
    return largest_remainder(targets, total, most)
