"""The reference attention against softmax written out."""

from collections.abc import Callable

import pytest
import torch

from kvbench.cache import attention
from kvbench.cache.attention import (
    MASKED_ROWS,
    AttentionParams,
    attend_segments,
    causal,
    causal_with_lse,
    explicit,
    fused,
    hidden,
    observe,
)
from tests.pretended_gpu import PretendedGpu


def by_hand(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
    outputs, lse = by_hand(queries, keys, values)
    actual = causal(queries, keys, values, 0.3)
    assert torch.allclose(actual.double(), outputs, atol=2e-6)
    assert torch.allclose(observe(queries, actual, keys, AttentionParams(0.3)).lse.double(), lse, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 40), (7, 40), (40, 40), (530, 1030), (1030, 1030)])
def test_the_pass_that_tells_its_log_sum_exp_gives_the_same_bits(rows: int, tokens: int, dtype: torch.dtype) -> None:
    """Whether another cell asks for it must change nothing."""
    generator = torch.Generator().manual_seed(tokens)
    queries = torch.randn(6, rows, 12, generator=generator).to(dtype)
    keys, values = torch.randn(2, 2, tokens, 12, generator=generator).to(dtype)
    outputs, lse = causal_with_lse(queries, keys, values, 0.3)
    assert torch.equal(outputs, causal(queries, keys, values, 0.3))
    assert lse.dtype == torch.float32 and torch.allclose(lse.double(), by_hand(queries, keys, values)[1], atol=4e-6)


@pytest.mark.parametrize("prefix", [0, 1, 33])
def test_prefix_and_tail_are_one_softmax(prefix: int) -> None:
    """Tail columns after a row are hidden, everything in the prefix is seen."""
    generator = torch.Generator().manual_seed(prefix)
    queries = torch.randn(4, 6, 8, generator=generator)
    keys, values = torch.randn(2, 4, prefix, 8, generator=generator)
    tail_keys, tail_values = torch.randn(2, 4, 5, 8, generator=generator)
    hidden = torch.arange(5) > torch.tensor([2, 3, 4, 2, 3, 4])[:, None]
    every = torch.cat((keys, tail_keys), 1), torch.cat((values, tail_values), 1)
    actual = attend_segments(queries, *every, hidden, 0.3)
    logits = (queries @ torch.cat((keys, tail_keys), 1).mT * 0.3).double()
    mask = torch.cat((torch.zeros(6, prefix, dtype=torch.bool), hidden), 1)
    expected = logits.masked_fill(mask, -torch.inf).softmax(-1) @ torch.cat((values, tail_values), 1).double()
    assert torch.allclose(actual.double(), expected, atol=1e-6)


def test_half_precision_softmax_runs_in_float32() -> None:
    """Many equal weights: bfloat16 sums would stall."""
    ones = torch.ones(1, 1, 4, dtype=torch.bfloat16)
    keys = torch.zeros(1, 3001, 4, dtype=torch.bfloat16)
    values = torch.ones(1, 3001, 4, dtype=torch.bfloat16)
    outputs = attend_segments(ones, keys, values, None, 1.0)
    assert torch.allclose(outputs.float(), torch.ones(1, 1, 4), atol=2e-2)


def written_out(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: AttentionParams) -> torch.Tensor:
    """Outputs of the newest rows in float64, column by column as the rule says."""
    group, tokens, rows = queries.shape[0] // keys.shape[0], keys.shape[1], queries.shape[1]
    keys, values = (part.double().repeat_interleave(group, 0) for part in (keys, values))
    logits = queries.double() @ keys.mT * rule.scaling
    if rule.softcap is not None:
        logits = rule.softcap * (logits / rule.softcap).tanh()
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if rule.sliding_window is not None:
        visible = visible.triu(1 - rule.sliding_window)
    numerators = logits.exp() * visible[-rows:]
    sinks = 0 if rule.sinks is None else rule.sinks.double().exp()[:, None, None]
    return numerators / (numerators.sum(-1, keepdim=True) + sinks) @ values


RULES = {
    "plain": AttentionParams(0.3),
    "window": AttentionParams(0.3, sliding_window=90),
    "narrow window": AttentionParams(0.3, sliding_window=1),
    "cap": AttentionParams(0.3, softcap=2.0),
    "cap and window": AttentionParams(0.3, softcap=2.0, sliding_window=33),
    "sinks": AttentionParams(0.3, sinks=torch.tensor([3.0, -1.0, 0.0, 5.0, 2.0, 0.5])),
    "sinks and window": AttentionParams(0.3, sinks=torch.tensor([3.0, -1.0, 0.0, 5.0, 2.0, 0.5]), sliding_window=33),
}


@pytest.mark.parametrize("attend", [fused, explicit])
@pytest.mark.parametrize(("rows", "tokens"), [(1, 40), (7, 40), (40, 40), (150, 190)])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_rules_are_those_written_out(
    attend: Callable[..., torch.Tensor], rows: int, tokens: int, rule: AttentionParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of rows that are handled at a time."""
    monkeypatch.setattr(attention, "LOGITS_AT_ONCE", 6 * 40 * 17)
    monkeypatch.setattr(attention, "COLUMN_CHUNK", 64)
    generator = torch.Generator().manual_seed(tokens)
    queries = torch.randn(6, rows, 12, generator=generator)
    keys, values = torch.randn(2, 2, tokens, 12, generator=generator)
    outputs = attend(queries, keys, values, rule)
    assert (outputs - written_out(queries, keys, values, rule)).abs().max() < 3e-6


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_tail_continues_a_prefix_by_the_same_rule(rule: AttentionParams) -> None:
    """The newest 5 of 40 rows, their keys in the tail; two segments of three heads each."""
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(6, 5, 12, generator=generator)
    keys, values = torch.randn(2, 2, 40, 12, generator=generator)
    outputs = attend_segments(
        queries.view(2, 15, 12),
        keys,
        values,
        hidden(5, 40, slice(35, 40), queries.device, rule.sliding_window).repeat(3, 1),
        rule.scaling,
        hidden_prefix=hidden(5, 40, slice(0, 35), queries.device, rule.sliding_window).repeat(3, 1),
        softcap=rule.softcap,
        sinks=None if rule.sinks is None else rule.sinks.view(2, 3).repeat_interleave(5, 1),
    )
    assert (outputs.view(6, 5, 12) - written_out(queries, keys, values, rule)).abs().max() < 3e-6


def test_a_long_later_block_is_read_in_parts_that_change_nothing() -> None:
    """Each part sees the columns up to its own last row and no mask beyond: what one masked call gives."""
    draw = torch.Generator().manual_seed(2)
    queries, keys, values = (torch.randn(heads, 1400, 16, generator=draw) for heads in (4, 2, 2))
    rows = 1100
    assert rows > 2 * MASKED_ROWS
    mask = ~hidden(rows, 1400, slice(0, 1400), queries.device)
    whole = torch.nn.functional.scaled_dot_product_attention(
        queries[None, :, -rows:], keys[None], values[None], attn_mask=mask, scale=0.3, enable_gqa=True
    )[0]
    torch.testing.assert_close(causal(queries[:, -rows:], keys, values, 0.3), whole, atol=1e-6, rtol=0)


def test_a_gpu_sums_a_long_segment_in_parts() -> None:
    """As many more products at a time as parts, the last pairs apart; a short segment stays one product."""
    drawn = torch.Generator().manual_seed(4)
    queries, (keys, values) = (
        torch.randn(2, 3, 8, generator=drawn),
        torch.randn(2, 2, 3 * 2048 + 77, 8, generator=drawn),
    )
    expected = attend_segments(queries, keys, values, None, 0.3)
    with PretendedGpu() as gpu:
        on_gpu = [part.to("cuda") for part in (queries, keys, values)]
        with gpu.section("long"):
            output = attend_segments(*on_gpu, None, 0.3)
        with gpu.section("short"):
            attend_segments(on_gpu[0], on_gpu[1][:, :4000], on_gpu[2][:, :4000], None, 0.3)
        assert (output.cpu() - expected).abs().max() < 1e-6
    assert gpu.launched("long") > gpu.launched("short")
