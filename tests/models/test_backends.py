"""flash-attn, which needs a GPU and a compiler, by stand-ins that do what its documentation says."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvbench.cache.attention import AttentionParams, explicit
from kvbench.models.loading import flash
from kvbench.models.loading.load import check_attention, prompt_attention
from kvbench.models.loading.spec import AttentionKind
from kvbench.support.errors import MissingFile


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


def flash_attn_3_func(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> tuple[torch.Tensor, ...]:
    """As releases of flash-attn 3 that return the log-sum-exp too; without a dropout."""
    return flash_attn_func(q, k, v, **given), torch.zeros(q.shape[:3])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Every package is a stand-in; what the Hub is asked for."""
    asked: list[tuple[str, int]] = []

    def get_kernel(repository: str, revision: str | None = None, version: int | None = None) -> SimpleNamespace:
        asked.append((repository, version or 0))
        return SimpleNamespace(flash_attn_func=flash_attn_3_func if "3" in repository else flash_attn_func)

    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_func=flash_attn_func))
    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=flash_attn_3_func))
    monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(get_kernel=get_kernel))
    monkeypatch.setattr(flash, "find_spec", lambda name: name)
    flash._function.cache_clear()
    yield asked
    flash._function.cache_clear()


@pytest.mark.parametrize(
    "rule",
    [
        AttentionParams(0.3),
        AttentionParams(0.3, softcap=2.0),
        AttentionParams(0.3, sliding_window=1),
        AttentionParams(0.3, softcap=2.0, sliding_window=9),
    ],
    ids=["plain", "cap", "narrow window", "cap and window"],
)
@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("backend", flash.SOURCES)
def test_flash_is_asked_for_the_rule(
    backend: AttentionKind, rule: AttentionParams, rows: int, asked: list[tuple[str, int]]
) -> None:
    generator = torch.Generator().manual_seed(rows)
    queries = torch.randn(6, rows, 12, generator=generator)
    keys, values = torch.randn(2, 2, 40, 12, generator=generator)
    outputs = prompt_attention(backend)(queries, keys, values, rule)
    assert (outputs - explicit(queries, keys, values, rule)).abs().max() < 1e-5


def test_the_hub_is_asked_once_for_a_fixed_version(asked: list[tuple[str, int]]) -> None:
    for backend in ("flash_hub", "flash3_hub", "flash3_hub", "flash"):
        prompt_attention(backend)(*torch.zeros(3, 2, 4, 8), AttentionParams(0.3))
    assert asked == [("kernels-community/flash-attn2", 4), ("kernels-community/flash-attn3", 1)]


def test_a_kernel_that_the_hub_does_not_have_and_sinks_are_refused_in_one_line(
    asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_kernel(repository: str, version: int) -> None:
        raise FileNotFoundError("no build variant for\ntorch 2.13 on cpu")

    monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(get_kernel=get_kernel))
    parts = torch.zeros(3, 2, 4, 8)
    with pytest.raises(MissingFile, match=r"attention=flash_hub: .*flash-attn2 was loaded: no build variant for torch"):
        prompt_attention("flash_hub")(*parts, AttentionParams(0.3))
    with pytest.raises(ValueError, match=r"flash3 does not support attention sinks: use model\.attention=sdpa"):
        prompt_attention("flash3")(*parts, AttentionParams(0.3, sinks=torch.zeros(2)))


@pytest.mark.parametrize("backend", flash.SOURCES)
def test_flash_runs_on_gpus_in_half_precision_only_and_version_3_on_hopper(
    backend: AttentionKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
        with pytest.raises(ValueError, match=rf"not on {device} in (bfloat16|float32): use model\.attention=sdpa"):
            check_attention(backend, torch.device(device), dtype)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_attention(backend, torch.device("cuda"), torch.float16)
    check_attention("sdpa", torch.device("cpu"), torch.float64)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    if "3" not in backend:
        check_attention(backend, torch.device("cuda"), torch.bfloat16)
        return
    other = backend.replace("3", "")
    with pytest.raises(ValueError, match=rf"capability 9\.0 or more .*, not 8\.6: use model\.attention={other}$"):
        check_attention(backend, torch.device("cuda"), torch.bfloat16)


@pytest.mark.parametrize(
    ("backend", "install"),
    [
        ("flash", r"pip install 'kvbench\[flash\]'"),
        ("flash3", r"flash3 needs flash-attn: .* folder hopper"),
        ("flash_hub", r"needs the package kernels: pip install kernels, or use model\.attention=sdpa"),
    ],
)
def test_flash_without_its_package_is_refused(
    backend: AttentionKind, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=install):
        prompt_attention(backend)
    assert prompt_attention("eager") is explicit
