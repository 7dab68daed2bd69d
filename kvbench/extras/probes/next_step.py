"""The first decoded token over the full cache: its query, keys and values in every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import LayerCache
from kvbench.models import bridge
from kvbench.models.engine import Engine, Prefilled
from kvbench.models.repeat import FrozenAttentionCache
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class Step:
    """A layer at the first decoded token: its query, the pairs that follow the cache, and the attention rule.

    The newest pair is the token's own; the pairs before it are of a question that was read after the cache.
    """

    query: Float[Tensor, "heads 1 head_dim"]
    keys: Float[Tensor, "kv_heads new head_dim"]
    values: Float[Tensor, "kv_heads new head_dim"]
    rule: AttentionParams


@torch.inference_mode()
def next_step(engine: Engine, prefilled: Prefilled, question: Sequence[int] = ()) -> dict[int, Step]:
    """Read the question, if any, choose the first token of the answer and read it; the steps by layer.

    Raises UserError for logits that are no numbers, and for a model whose rotation depends on how much is read.
    """
    cache, logits, before = prefilled.cache, prefilled.logits, list(question)
    engine.check_length(cache.num_tokens, len(before) + 1)
    steps: dict[int, Step] = {}

    def record(layer: LayerCache, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> None:
        steps[layer.index] = Step(queries[:, -1:], keys, values, rule)

    def read(ids: list[int]) -> Float[Tensor, "vocabulary"]:
        frozen = FrozenAttentionCache(cache, engine.max_length, engine.attend, record)
        return bridge.forward(engine.model, torch.tensor([ids], device=engine.device), cache.num_tokens, frozen)[0]

    if before:
        logits = read(before)
    if not logits.isfinite().any() or logits.isnan().any():
        raise UserError("the logits of the first decoded token are no numbers (NaN or infinite)")
    read([*before, int(logits.argmax())])
    return steps
