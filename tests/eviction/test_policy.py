"""A policy refuses what it cannot mean, by value and with what would be allowed."""

import re
from typing import Any

import pytest

from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.policy import Policy, TokenFraction


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("reduce", "avg", "sum, mean, max, observed_attention"),
        ("group", "median", "None, mean, max, sum, none, layer_mean"),
        ("variant", "x", "paper, official"),
        ("layout", "heads", "kv_heads, query_heads"),
        ("layout", ["kv_heads"], "kv_heads, query_heads"),
    ],
)
def test_words_outside_the_legal_set_are_refused(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError) as refused:
        Policy("p", **{field: value})
    assert str(refused.value) == f"policy.{field}={value} is not allowed; allowed: {allowed}"


@pytest.mark.parametrize(
    "order",
    [(), ("pool",), ("pool", "pool"), ("pool", "group", "pool"), ("group", "sum"), "pool", 3, [["pool"], "group"]],
)
def test_an_order_names_both_steps_once(order: Any) -> None:
    with pytest.raises(ValueError, match=r"policy\.order=.* is not allowed; allowed: \[group,pool\], \[pool,group\]"):
        Policy("p", order=order)


@pytest.mark.parametrize("accepts", ["score", ("window",), (["score"],), None])
def test_a_policy_is_crossed_with_scores_and_budgets_only(accepts: Any) -> None:
    with pytest.raises(ValueError, match=r"policy\.accepts=.* is not allowed; allowed: any of score, budget"):
        Policy("p", accepts=accepts)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 0),
        ("window", -1),
        ("window_skips", -1),
        ("window_skips", "chat"),
        ("window_skips", TokenFraction(0.1)),
        ("sink", -1),
        ("recent", -16),
        ("window", "none"),
        ("sink", 4.0),
    ],
)
def test_numbers_of_tokens_are_whole_and_not_negative(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"policy\.{field}={re.escape(repr(value))}"):
        Policy("p", **{field: value})


def test_layout_and_group_must_agree() -> None:
    with pytest.raises(
        ValueError, match=r"policy.group=none keeps one cache per query head: it needs policy.layout=query_heads"
    ):
        Policy("p", group="none")
    with pytest.raises(ValueError, match=r"policy.group=mean merges query heads"):
        Policy("p", group="mean", layout="query_heads")
    apart = Policy("p", layout="query_heads")
    assert apart.group_of("sum") == "none"
    assert Policy("p").group_of("sum") == "sum" and Policy("p", group="max").group_of("sum") == "max"


def test_the_head_of_a_prompt_is_known_when_it_is_there() -> None:
    """`sink=head` protects what stands before whatever a sample says."""
    policy = Policy("kvzip", sink="head", recent=3)
    assert policy.protected == 3
    assert policy.resolve(11, 50, TokenBudget(20)) == Policy("kvzip", sink=11, recent=3)
    assert Policy("p", sink=4).resolve(11, 50, TokenBudget(20)).sink_tokens == 4
    with pytest.raises(AssertionError):
        assert policy.sink_tokens


@pytest.mark.parametrize(
    ("part", "tokens", "pairs", "expected"),
    [
        (TokenFraction(0.05), 3000, 300, 15),
        (TokenFraction(0.05, "prompt"), 3000, 300, 150),
        (TokenFraction(0.05), 100, 10, 0),
        (TokenFraction(0.29), 500, 100, 29),
        (TokenFraction(1.0), 500, 100, 100),
        (TokenFraction(1.0, most=16), 500, 100, 16),
        (TokenFraction(1.0, most=16), 72, 7, 7),
    ],
)
def test_a_part_grows_with_the_prompt(part: TokenFraction, tokens: int, pairs: int, expected: int) -> None:
    """OBCache protects 5 % of the budget; its paper says of the prompt. One row votes at least."""
    policy = Policy("h2o_obcache", window=part, recent=part).resolve(0, tokens, TokenBudget(pairs))
    assert (policy.recent, policy.window) == (expected, max(1, expected))
    assert Policy("h2o_obcache", window=part, recent=part, sink=3).protected == 3


@pytest.mark.parametrize(("span", "pairs"), [("prompt", 80), ("context", 50 + 80)])
def test_the_whole_prompt_is_kept_and_may_count(span: str, pairs: int) -> None:
    policy = Policy("p", sink="prompt", recent=2, budget_span=span).resolve(11, 50, TokenBudget(80))  # type: ignore[arg-type]
    assert (policy.sink_tokens, policy.protected, policy.pairs(TokenBudget(80), 50)) == (50, 52, pairs)


@pytest.mark.parametrize(("ratio", "of_context", "of_prompt"), [("0.1", 3, 6), ("0.4", 13, 24), ("1.0", 33, 59)])
def test_a_budget_of_the_context_leaves_the_head_of_the_prompt_out(ratio: str, of_context: int, of_prompt: int) -> None:
    """KVzip keeps the ratio of the context and, in addition, the system prompt: 59 tokens, 26 of them head."""
    budget = parse_budget(ratio)
    context, prompt = (
        Policy("kvzip", sink="head", recent=2, budget_span=span).resolve(26, 59, budget)
        for span in ("context", "prompt")
    )
    assert (context.pairs(budget, 59), prompt.pairs(budget, 59)) == (26 + of_context, of_prompt)
    assert (context.protected, context.budgeted, prompt.budgeted) == (28, 2, 28)
    part = TokenFraction(0.5)
    assert Policy("p", sink=26, recent=part, budget_span="context").resolve(0, 59, budget).recent == of_context // 2


@pytest.mark.parametrize("part", [{"part": 1.5}, {"part": -0.1}, {"part": 0.1, "of": "window"}])
def test_what_is_no_part_is_refused(part: dict) -> None:
    with pytest.raises(ValueError, match=r"allowed: (0 to 1|budget, prompt)"):
        TokenFraction(**part)


def test_a_window_that_skips_the_template_ends_with_the_users_text() -> None:
    """The tokens behind it are kept beside the recent ones, inside the budget; later evictions skip none."""
    policy = Policy("p", window=16, window_skips="template", sink=2, recent=8)
    of_prompt = policy.resolve(11, 100, TokenBudget(40), suffix_tokens=5)
    assert (of_prompt.skipped, of_prompt.recent_tokens, of_prompt.protected_tail, of_prompt.protected) == (5, 8, 13, 15)
    assert of_prompt.recorded(100) == {21} and of_prompt.recorded(12) == {12}
    assert of_prompt.decoding == Policy("p", window=16, sink=2, recent=8)
    assert policy.resolve(11, 100, TokenBudget(40)).window_skips == 0
    assert policy.resolve(11, 4, TokenBudget(40), suffix_tokens=5).window_skips == 3  # one query is left to observe
    whole = Policy("p", window="all", window_skips="template").resolve(0, 100, TokenBudget(40), suffix_tokens=5)
    assert whole.recorded(100) == {100}


def test_a_window_of_the_question_skips_the_template_too() -> None:
    policy = Policy("p", window="question", window_skips="template", recent="question")
    of_prompt = policy.resolve(11, 100, TokenBudget(40), question_tokens=20, suffix_tokens=5)
    assert (of_prompt.window, of_prompt.skipped, of_prompt.protected_tail) == (15, 5, 20)
