"""Budgets as they are written and what they come to."""

import pytest

from kvbench.eviction.budget import ByteBudget, FractionBudget, TokenBudget, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("literal", "num_tokens", "pairs"),
    [
        ("0.1", 385, 39),  # exactly 38.5: half goes up
        ("0.1", 384, 38),
        (0.1, 10, 1),
        ("1e-1", 385, 39),
        ("0.001", 10, 1),  # at least one
        ("1.0", 77, 77),
        (1.0, 77, 77),
        ("64", 1000, 64),
        (64, 10, 64),
    ],
)
def test_what_a_budget_comes_to(literal: str | float, num_tokens: int, pairs: int) -> None:
    assert parse_budget(literal).of(num_tokens) == pairs


def test_an_integer_counts_pairs_and_a_dot_makes_a_share() -> None:
    assert isinstance(parse_budget("1"), TokenBudget)
    assert isinstance(parse_budget("1.0"), FractionBudget)
    assert str(parse_budget("0.10")) == str(parse_budget(".1")) == "0.1"
    assert str(parse_budget("128")) == "128"


@pytest.mark.parametrize("literal", ["0", "0.0", "-1", "-0.1", "1.7", "abc", "", "nan", "inf", "1e999", "true", True])
def test_what_is_no_budget_is_refused_with_the_legal_set(literal: str | bool) -> None:
    with pytest.raises(ValueError, match=r"^budget=.*allowed|^budget=.*fraction of the prompt"):
        parse_budget(literal)


def test_bytes_come_to_the_tokens_that_fit() -> None:
    budget = parse_bytes(" 600KiB ")
    assert budget is not None and budget == ByteBudget(614400, "600KiB")
    tokens = budget.tokens(614400 // 75 + 1)
    assert (tokens.pairs, str(tokens), tokens.counted) == (74, "600KiB", "600KiB (74 tokens)")
    assert budget.tokens(614400).pairs == 1 and TokenBudget(74).counted == "74"
    with pytest.raises(
        ValueError, match=r"^budget=600KiB keeps nothing: a token takes 1\.17 MiB in all heads .*allowed"
    ):
        budget.tokens(2 * 614400)


@pytest.mark.parametrize("literal", ["600", 600, 0.1, "600KB", "KiB", "-1KiB", "1e3KiB", "600kib", True, None])
def test_what_is_not_in_bytes(literal: object) -> None:
    assert parse_bytes(literal) is None
