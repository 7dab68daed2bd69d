"""The budget that an allocation splits, and the split of a number of KV pairs into whole shares."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal

Variant = Literal["paper", "official"]
DECIMALS = 9
"""Targets are rounded to so many decimals first, so that rounding noise does not decide."""


@dataclass(frozen=True)
class AllocationBudget:
    """The budget of an eviction, in KV pairs per cache head.

    budget: KV pairs kept on average over heads and layers, protected ones included. sink, recent: first and newest KV
    pairs, which are always kept. tokens: KV pairs that exist. variant: the rule of the paper or of its published code,
    where they differ. even_heads: whether the heads of a layer keep the same number. stale_floor: whether the published
    mixture of heads takes its floor from the whole budget, not from the share of the layer. held: candidates per cache
    head of each layer, where earlier evictions left some layers fewer than others.
    """

    budget: int
    sink: int
    recent: int
    tokens: int
    variant: Variant = "paper"
    even_heads: bool = True
    stale_floor: bool = False
    held: tuple[int, ...] | None = None

    @property
    def protected(self) -> int:
        """KV pairs that are always kept."""
        return self.sink + self.recent

    @property
    def base(self) -> int:
        """Candidates that each cache head keeps on average."""
        return self.budget - self.protected

    @property
    def candidates(self) -> int:
        """Candidates that each cache head has."""
        return self.tokens - self.protected

    def limits(self, layers: int) -> tuple[int, ...]:
        """Return the most that each layer can keep per cache head."""
        return self.held or (self.candidates,) * layers

    def total(self, layers: int) -> int:
        """Return the sum that the layers keep, per cache head."""
        return min(layers * self.base, sum(self.limits(layers)))


def largest_remainder(targets: Sequence[int | float], total: int, most: int | Sequence[int]) -> tuple[int, ...]:
    """Return the floor of each target, plus one each by descending fraction (then lower index) until the sum is
    `total`.

    Entries that hold `most` (one number for all, or one each) are skipped. `total` must fit.
    """
    limits = [most] * len(targets) if isinstance(most, int) else most
    assert total <= sum(limits), f"{total} pairs in {len(targets)} entries of {most}"
    rounded = [round(target, DECIMALS) for target in targets]
    counts = [min(limit, floor(target)) for target, limit in zip(rounded, limits, strict=True)]
    fractions = [round(target - floor(target), DECIMALS) for target in rounded]
    by_fraction = sorted(range(len(targets)), key=lambda index: (-fractions[index], index))
    while (missing := total - sum(counts)) > 0:
        for index in [index for index in by_fraction if counts[index] < limits[index]][:missing]:
            counts[index] += 1
    assert sum(counts) == total, f"targets {rounded} exceed {total}"
    return tuple(counts)


def shares(total: int, weights: Sequence[int | float], most: int | Sequence[int]) -> tuple[int, ...]:
    """Split `total` in proportion to `weights`, at most `most` per entry (or one number each), by largest remainder.

    The excess of a full entry is split again among the others. Weights that are all zero count as equal.
    """
    limits = [most] * len(weights) if isinstance(most, int) else most
    targets = [0.0] * len(weights)
    remaining, open_entries = float(total), list(range(len(weights)))
    while open_entries:
        mass = sum(weights[index] for index in open_entries)
        for index in open_entries:
            targets[index] = remaining * (weights[index] / mass if mass > 0 else 1 / len(open_entries))
        full = [index for index in open_entries if targets[index] > limits[index]]
        if not full:
            break
        for index in full:
            targets[index] = float(limits[index])
            remaining -= limits[index]
        open_entries = [index for index in open_entries if index not in full]
    return largest_remainder(targets, total, limits)
