"""flash-attn, which needs a GPU and a compiler, by a stand-in that does what its documentation says."""

import sys
from types import SimpleNamespace

import pytest
import torch

from kvbench.cache.attention import Rule, explicit
from kvbench.models.loading.load import check_attention, flash, prompt_attention


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    """q [batch, rows, heads, size], k and v [batch, tokens, kv_heads, size]. Row i stands at i + tokens - rows and sees
    window_size[0] columns before it and window_size[1] after it, all of them for -1; 0 is no cap."""
    assert causal and softmax_scale is not None and dropout_p == 0
    (queries, keys, values), group = (part[0].transpose(0, 1) for part in (q, k, v)), q.shape[2] // k.shape[2]
    logits = queries @ keys.repeat_interleave(group, 0).mT * softmax_scale
    if softcap > 0:
        logits = softcap * torch.tanh(logits / softcap)
    rows, tokens = logits.shape[-2:]
    distance = torch.arange(tokens) - (torch.arange(rows)[:, None] + tokens - rows)
    hidden = distance > 0
    if window_size[0] >= 0:
        hidden |= distance < -window_size[0]
    output = logits.masked_fill(hidden, -torch.inf).softmax(-1) @ values.repeat_interleave(group, 0)
    return output.transpose(0, 1)[None]


@pytest.mark.parametrize(
    "rule",
    [Rule(0.3), Rule(0.3, softcap=2.0), Rule(0.3, sliding_window=1), Rule(0.3, softcap=2.0, sliding_window=9)],
    ids=["plain", "cap", "narrow window", "cap and window"],
)
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_flash_is_asked_for_the_rule(rule: Rule, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_func=flash_attn_func))
    generator = torch.Generator().manual_seed(rows)
    queries = torch.randn(6, rows, 12, generator=generator)
    keys, values = torch.randn(2, 2, 40, 12, generator=generator)
    outputs = flash(queries, keys, values, rule)
    assert (outputs - explicit(queries, keys, values, rule)).abs().max() < 1e-5


def test_flash_knows_no_sinks() -> None:
    parts = torch.zeros(3, 2, 4, 8)
    with pytest.raises(
        ValueError, match=r"model\.attention=flash does not support attention sinks: use model\.attention=sdpa"
    ):
        flash(*parts, Rule(0.3, sinks=torch.zeros(2)))


def test_flash_runs_on_gpus_in_half_precision_only() -> None:
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
        with pytest.raises(ValueError, match=rf"not on {device} in (bfloat16|float32): use model\.attention=sdpa"):
            check_attention("flash", torch.device(device), dtype)
    check_attention("flash", torch.device("cuda"), torch.float16)
    check_attention("sdpa", torch.device("cpu"), torch.float64)


def test_flash_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.models.loading.load.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'kvbench\[flash\]'"):
        prompt_attention("flash")
    assert prompt_attention("eager") is explicit
