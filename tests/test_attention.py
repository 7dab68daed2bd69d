"""The reference attention against softmax written out."""

import pytest
import torch

from kvbench.attention import causal, observe, over_prefix_and_tail


def explicit(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and log-sum-exp of the newest rows, in float64."""
    group, tokens = queries.shape[0] // keys.shape[0], keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, 0) for part in (keys, values))
    visible = torch.ones(tokens, tokens).tril()[-queries.shape[1] :].bool()
    logits = (queries.double() @ keys.mT * 0.3).masked_fill(~visible, -torch.inf)
    return logits.softmax(-1) @ values, logits.logsumexp(-1)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 40), (7, 40), (40, 40), (5, 1030), (3, 2048)])
def test_newest_rows_see_all_before_them(rows: int, tokens: int) -> None:
    """Whole prompts, blocks and single tokens, and the log-sum-exp across column chunks."""
    generator = torch.Generator().manual_seed(tokens)
    queries = torch.randn(6, rows, 12, generator=generator)
    keys, values = torch.randn(2, 2, tokens, 12, generator=generator)
    outputs, lse = explicit(queries, keys, values)
    got = causal(queries, keys, values, 0.3)
    assert torch.allclose(got.double(), outputs, atol=2e-6)
    assert torch.allclose(observe(queries, got, keys, 0.3).lse.double(), lse, atol=2e-6)


@pytest.mark.parametrize("prefix", [0, 1, 33])
def test_prefix_and_tail_are_one_softmax(prefix: int) -> None:
    """Tail columns after a row are hidden, everything in the prefix is seen."""
    generator = torch.Generator().manual_seed(prefix)
    queries = torch.randn(4, 6, 8, generator=generator)
    keys, values = torch.randn(2, 4, prefix, 8, generator=generator)
    tail_keys, tail_values = torch.randn(2, 4, 5, 8, generator=generator)
    hidden = torch.arange(5) > torch.tensor([2, 3, 4, 2, 3, 4])[:, None]
    got = over_prefix_and_tail(queries, keys, values, tail_keys, tail_values, hidden, 0.3)
    logits = (queries @ torch.cat((keys, tail_keys), 1).mT * 0.3).double()
    mask = torch.cat((torch.zeros(6, prefix, dtype=torch.bool), hidden), 1)
    expected = logits.masked_fill(mask, -torch.inf).softmax(-1) @ torch.cat((values, tail_values), 1).double()
    assert torch.allclose(got.double(), expected, atol=1e-6)


def test_half_precision_softmax_runs_in_float32() -> None:
    """Many equal weights: bfloat16 sums would stall."""
    ones = torch.ones(1, 1, 4, dtype=torch.bfloat16)
    keys = torch.zeros(1, 3000, 4, dtype=torch.bfloat16)
    values = torch.ones(1, 3000, 4, dtype=torch.bfloat16)
    got = over_prefix_and_tail(ones, keys, values, keys[:, :1], values[:, :1], None, 1.0)
    assert torch.allclose(got.float(), torch.ones(1, 1, 4), atol=2e-2)
