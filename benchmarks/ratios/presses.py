"""Presses of kvpress for a comparison of kept sets: cases, and stand-ins for weights that the hub has.

Read by processes of two environments: this file knows neither kvbench nor kvpress.
"""

from types import SimpleNamespace
from typing import Any

import torch

WINDOW = {"window_size": 8}
SNAPKV = {"press": "SnapKVPress", "args": WINDOW}
CASES: dict[str, dict[str, Any]] = {
    "KnormPress": {},
    "KeyDiffPress": {},
    "RandomPress": {},
    "StreamingLLMPress": {},
    "LagKVPress": {"lag_size": 16},
    "CURPress": {},
    "QFilterPress": {},
    "ExpectedAttentionPress": {},
    "ExpectedAttentionStatsPress": {},
    "CapPress": {},
    "LeverageScorePress": {},
    "KVzapPress": {"model_type": "linear"},
    "SnapKVPress": WINDOW,
    "TOVAPress": {},
    "PyramidKVPress": WINDOW | {"beta": 4},
    "FinchPress": WINDOW | {"rerotate_keys": False},
    "NonCausalAttnPress": {"chunk_size": 32},
    "CompactorPress": {"chunk_size": 32},
    "CriticalKVPress": {"press": SNAPKV},
    "AdaKVPress": {"press": SNAPKV},
    "ObservedAttentionPress": {},
}
"""Arguments that suit a prompt of 150 tokens. The last two are policies here."""
KEPT = (105, 60, 15)
"""Pairs a KV head of 150 tokens: ratios of 0.3, 0.6 and 0.9."""


def ratio(tokens: int, pairs: int) -> float:
    """The compression ratio that makes kvpress keep so many pairs, a billionth above where it rounds."""
    return 1 - pairs / tokens - 1e-9


def stand_in(kvpress: Any) -> None:
    """Random weights in place of those that presses load from the hub by the name of a model."""

    def drawn(model: Any, *shape: str | int) -> torch.Tensor:
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = {
            "head_dim": head_dim,
            **{str(name): getattr(config, str(name)) for name in shape if name in vars(config)},
        }
        generator = torch.Generator().manual_seed(7)
        return torch.randn([sizes[each] if isinstance(each, str) else each for each in shape], generator=generator)

    layers, heads, kv_heads = "num_hidden_layers", "num_attention_heads", "num_key_value_heads"

    def filters(press: Any, model: Any) -> None:
        press.q_filters = drawn(model, layers, kv_heads, "head_dim")

    def statistics(press: Any, model: Any) -> None:
        factor = drawn(model, layers, heads, "head_dim", "head_dim") / 8
        press.mu, press.cov = drawn(model, layers, heads, "head_dim"), factor @ factor.mT

    def gates(press: Any, model: Any) -> None:
        weights = drawn(model, layers, "hidden_size", kv_heads)
        press.kvzap_model = SimpleNamespace(layers=[_Gate(weight) for weight in weights])

    kvpress.QFilterPress.post_init_from_model = filters
    kvpress.ExpectedAttentionStatsPress.post_init_from_model = statistics
    kvpress.KVzapPress.post_init_from_model = gates


class _Gate(torch.nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.weight
