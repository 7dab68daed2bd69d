"""FINCH's score by its formula, and the question as window."""

from itertools import pairwise

import pytest
import torch

from kvbench.config.overrides import parse
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.weighted import Finch
from kvbench.support.errors import UserError
from kvbench.work.planned import checked
from tests.arrays import random_layer

FINCH = Policy("finch", window="question", recent="question")


@pytest.mark.parametrize("tokens", [40, 1500])
def test_later_rows_count_more(tokens: int) -> None:
    """By row: its weights times the number of tokens before it. 1500 tokens are two chunks of columns."""
    layer = random_layer(tokens, window=5)
    rows = layer.observed(5)
    each = [Attention()(layer, rows.last(count), "sum") for count in range(1, 6)]
    by_row = [each[0], *(after - before for before, after in pairwise(each))]
    expected = sum(weights * (tokens - 1 - back) for back, weights in enumerate(by_row)) / 5
    torch.testing.assert_close(Finch()(layer, rows, "sum"), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(Finch(normalize=False)(layer, rows, "sum"), each[-1] / 5)


def test_the_window_is_the_question_of_the_prompt() -> None:
    policy = FINCH.resolve(3, 90, TokenBudget(40), 12)
    assert (policy.rows(90), policy.protected_tail, policy.sink_tokens) == (12, 12, 0)
    assert FINCH.resolve(3, 90, TokenBudget(40)).protected_tail == 16  # where the prompt is not known
    with pytest.raises(UserError, match=r"policy.window=question of finch, but this prompt has no question"):
        FINCH.resolve(3, 90, TokenBudget(40), 0)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("schedule.evict_after=context", "schedule.evict_after=context evicts before"),
        ("schedule.prefill_block=64", "schedule.prefill_block=64 evicts before"),
        ("task=pg19", "task pg19 has no question"),
    ],
)
def test_what_asks_nothing_is_refused_before_a_model_is_loaded(word: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        checked(parse(f"policy=finch {word}".split()), print)
