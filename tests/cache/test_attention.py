"""The reference attention against softmax written out."""

from collections.abc import Callable, Sequence

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

PLAIN = AttentionParams(0.3)


def written_out(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rule: AttentionParams = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of the newest rows in float64, column by column as the rule says, and the log-sum-exp without sinks."""
    group, tokens, rows = queries.shape[0] // keys.shape[0], keys.shape[1], queries.shape[1]
    keys, values = (part.double().repeat_interleave(group, 0) for part in (keys, values))
    logits = queries.double() @ keys.mT * rule.scaling
    if rule.softcap is not None:
        logits = rule.softcap * (logits / rule.softcap).tanh()
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    if rule.sliding_window is not None:
        visible = visible.triu(1 - rule.sliding_window)
    numerators = logits.exp() * visible[-rows:]
    sums = numerators.sum(-1, keepdim=True)
    sinks = 0 if rule.sinks is None else rule.sinks.double().exp()[:, None, None]
    return numerators / (sums + sinks) @ values, sums.squeeze(-1).log()


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 40), (7, 40), (40, 40), (5, 1030), (3, 2048)])
def test_newest_rows_see_all_before_them(rows: int, tokens: int) -> None:
    """Whole prompts, blocks and single tokens, and the log-sum-exp across column chunks."""
    generator = torch.Generator().manual_seed(tokens)
    queries = torch.randn(6, rows, 12, generator=generator)
    keys, values = torch.randn(2, 2, tokens, 12, generator=generator)
    outputs, lse = written_out(queries, keys, values)
    actual = causal(queries, keys, values, 0.3)
    assert torch.allclose(actual.double(), outputs, atol=2e-6)
    assert torch.allclose(observe(queries, actual, keys, PLAIN).lse.double(), lse, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 40), (7, 40), (40, 40), (530, 1030), (1030, 1030)])
def test_the_pass_that_tells_its_log_sum_exp_gives_the_same_bits(rows: int, tokens: int, dtype: torch.dtype) -> None:
    """Whether another cell asks for it must change nothing."""
    generator = torch.Generator().manual_seed(tokens)
    queries = torch.randn(6, rows, 12, generator=generator).to(dtype)
    keys, values = torch.randn(2, 2, tokens, 12, generator=generator).to(dtype)
    outputs, lse = causal_with_lse(queries, keys, values, 0.3)
    assert torch.equal(outputs, causal(queries, keys, values, 0.3))
    assert lse.dtype == torch.float32 and torch.allclose(lse.double(), written_out(queries, keys, values)[1], atol=4e-6)


def test_half_precision_softmax_runs_in_float32() -> None:
    """Many equal weights: bfloat16 sums would stall."""
    ones = torch.ones(1, 1, 4, dtype=torch.bfloat16)
    keys = torch.zeros(1, 3001, 4, dtype=torch.bfloat16)
    values = torch.ones(1, 3001, 4, dtype=torch.bfloat16)
    outputs = attend_segments(ones, keys, values, None, 1.0)
    assert torch.allclose(outputs.float(), torch.ones(1, 1, 4), atol=2e-2)


RULES = {
    "plain": PLAIN,
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
    monkeypatch.setattr(attention, "LOGITS_AT_ONCE", 6 * 40 * 17)
    monkeypatch.setattr(attention, "COLUMN_CHUNK", 64)
    generator = torch.Generator().manual_seed(tokens)
    queries = torch.randn(6, rows, 12, generator=generator)
    keys, values = torch.randn(2, 2, tokens, 12, generator=generator)
    outputs = attend(queries, keys, values, rule)
    assert (outputs - written_out(queries, keys, values, rule)[0]).abs().max() < 3e-6


@pytest.mark.parametrize("rule", [PLAIN, RULES["window"]], ids=["plain", "window"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_fused_kernel_of_a_gpu_that_has_no_grouped_heads_gets_none(
    dtype: torch.dtype, rule: AttentionParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a mask or a wide type; only flash attention has grouped heads, and torch writes logits out for others."""
    groups, launch = set[int](), PretendedGpu._attention

    def noted(gpu: PretendedGpu, func: object, args: Sequence[torch.Tensor], options: dict[str, object]) -> object:
        groups.add(args[0].shape[1] // args[1].shape[1])
        return launch(gpu, func, args, options)

    monkeypatch.setattr(PretendedGpu, "_attention", noted)
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(6, 120, 16, generator=generator).to(dtype)
    keys, values = torch.randn(2, 2, 120, 16, generator=generator).to(dtype)
    with PretendedGpu() as gpu:
        outputs = fused(queries.to("cuda"), keys.to("cuda"), values.to("cuda"), rule).cpu()
    assert groups == {3 if dtype == torch.bfloat16 and rule is PLAIN else 1} and not gpu.mixed
    assert torch.allclose(outputs.float(), written_out(queries, keys, values, rule)[0].float(), atol=0.03)


@pytest.mark.parametrize("tokens", [5, 6, 40])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_tail_continues_a_prefix_by_the_same_rule(rule: AttentionParams, tokens: int) -> None:
    """The newest 5 rows, their keys in the tail; two segments of three heads each."""
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(6, 5, 12, generator=generator)
    keys, values = torch.randn(2, 2, tokens, 12, generator=generator)
    before, tail = (
        hidden(5, tokens, columns, queries.device, rule.sliding_window).repeat(3, 1)
        for columns in (slice(0, tokens - 5), slice(tokens - 5, tokens))
    )
    outputs = attend_segments(
        queries.view(2, 15, 12),
        keys,
        values,
        tail,
        rule.scaling,
        hidden_prefix=before,
        softcap=rule.softcap,
        sinks=None if rule.sinks is None else rule.sinks.view(2, 3).repeat_interleave(5, 1),
    )
    assert (outputs.view(6, 5, 12) - written_out(queries, keys, values, rule)[0]).abs().max() < 3e-6


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
    queries = torch.randn(2, 3, 8, generator=drawn)
    keys, values = torch.randn(2, 2, 3 * 2048 + 77, 8, generator=drawn)
    expected = attend_segments(queries, keys, values, None, 0.3)
    with PretendedGpu() as gpu:
        on_gpu = [part.to("cuda") for part in (queries, keys, values)]
        with gpu.section("long"):
            output = attend_segments(*on_gpu, None, 0.3)
        with gpu.section("short"):
            attend_segments(on_gpu[0], on_gpu[1][:, :4000], on_gpu[2][:, :4000], None, 0.3)
        assert (output.cpu() - expected).abs().max() < 1e-6
    assert gpu.launched("long") > gpu.launched("short")
