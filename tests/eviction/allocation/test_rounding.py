"""Whole pairs from real shares: exact sums, bounds, and the stated order among equals."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from kvbench.eviction.allocation.shares import largest_remainder, shares

weights = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=9)


@given(weights=weights, most=st.integers(0, 200), data=st.data())
def test_shares_add_up_and_fit(weights: list[float], most: int, data: st.DataObject) -> None:
    total = data.draw(st.integers(0, most * len(weights)))
    counts = shares(total, weights, most)
    assert sum(counts) == total
    assert all(0 <= count <= most for count in counts)


@given(weights=weights, most=st.integers(1, 200), data=st.data())
def test_a_heavier_entry_never_gets_less_than_a_lighter_one_less_a_unit(
    weights: list[float], most: int, data: st.DataObject
) -> None:
    total = data.draw(st.integers(0, most * len(weights)))
    counts = shares(total, weights, most)
    for heavy, more in zip(weights, counts, strict=True):
        for light, less in zip(weights, counts, strict=True):
            assert heavy < light or more >= less - 1


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=7), total=st.integers(0, 300))
def test_no_share_is_a_unit_away_from_its_quota(weights: list[int], total: int) -> None:
    """Where nothing is full, largest remainder stays between floor and ceiling of the exact quota."""
    for weight, count in zip(weights, shares(total, weights, most=10**6), strict=True):
        quota = Fraction(total * weight, sum(weights))
        assert quota - 1 < count < quota + 1


def test_missing_units_go_to_the_largest_fractions_and_lower_entries_first() -> None:
    assert largest_remainder([1.2, 1.7, 1.1], 4, 9) == (1, 2, 1)
    assert largest_remainder([1.5, 1.5, 1.5, 1.5], 6, 9) == (2, 2, 1, 1)
    assert largest_remainder([8.8, 3.8, 2.4], 15, 9) == (9, 4, 2)
    assert largest_remainder([3.8, 8.8, 1.4], 13, 9) == (4, 8, 1)  # equal fractions, whatever their noise
    assert largest_remainder([0.1 + 0.2, 0.7], 1, 9) == (0, 1)
    assert largest_remainder([2.9999999999, 1.0], 4, 9) == (3, 1)  # noise beyond nine decimals


def test_full_entries_are_passed_over_and_what_they_leave_is_shared_in_proportion() -> None:
    assert largest_remainder([3.0, 1.9, 1.1], 6, 3) == (3, 2, 1)
    assert shares(30, [100, 1, 2], 12) == (12, 6, 12)
    assert shares(24, [100, 1, 2], 12) == (12, 4, 8)
    assert shares(7, [0, 0, 0], 9) == (3, 2, 2)
    assert shares(5, [0, 1], 3) == (2, 3)
