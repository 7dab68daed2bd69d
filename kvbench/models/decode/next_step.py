"""The first decoded token over the full cache: its query, keys and values in every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.cache.kv_cache import KVCache
from kvbench.models import bridge
from kvbench.models.bridge import within
from kvbench.models.engine import Engine, Prefilled
from kvbench.models.prefill import Attend, Heads, KVHeads
from kvbench.support.errors import UserError


@dataclass(frozen=True)
class Step:
    """A layer at the first decoded token: its query, the pairs that follow the cache, and the attention rule.

    The newest pair is that of the token itself; those before it are of a question that was read after the cache.
    """

    query: Float[Tensor, "heads 1 head_dim"]
    keys: Float[Tensor, "kv_heads new head_dim"]
    values: Float[Tensor, "kv_heads new head_dim"]
    rule: Rule


class NextStepReader:
    """A reader of tokens after a frozen cache; records the `steps` of the last token, by layer."""

    def __init__(self, cache: KVCache, max_length: int | None, attend: Attend) -> None:
        self.steps: dict[int, Step] = {}
        self._layers = {layer.index: layer for layer in cache.layers}
        self._max_length, self._attend = max_length, attend

    def attend(self, layer: int, queries: Heads, keys: KVHeads, values: KVHeads, rule: Rule) -> Heads:
        """Attend to the cache and, causally, to the new tokens."""
        rule, (cached_keys, cached_values) = within(rule, self._max_length), self._layers[layer].dense
        self.steps[layer] = Step(queries[0, :, -1:], keys[0], values[0], rule)
        every = torch.cat((cached_keys, keys[0]), dim=1), torch.cat((cached_values, values[0]), dim=1)
        return self._attend(queries[0], *every, rule)[None]


@torch.inference_mode()
def next_step(engine: Engine, prefilled: Prefilled, question: Sequence[int] = ()) -> dict[int, Step]:
    """Read the question, if any, choose the first token of the answer and read it; the steps by layer.

    Raises ValueError for logits that are no numbers, and for a model whose rotation depends on how much is read.
    """
    cache, logits, before = prefilled.cache, prefilled.logits, list(question)
    engine.check_length(cache.num_tokens, len(before) + 1)

    def read(ids: list[int]) -> tuple[NextStepReader, Float[Tensor, "vocabulary"]]:
        reader = NextStepReader(cache, engine.max_length, engine.attend)
        return reader, bridge.forward(
            engine.model, torch.tensor([ids], device=engine.device), cache.num_tokens, reader
        )[0]

    if before:
        _, logits = read(before)
    if not logits.isfinite().any() or logits.isnan().any():
        raise UserError("the logits of the first decoded token are no numbers (NaN or infinite)")
    reader, _ = read([*before, int(logits.argmax())])
    return reader.steps
