"""The oracle of eviction: one dense forward pass in which later tokens cannot see evicted pairs."""

import torch
from torch import Tensor

from kvbench.models import bridge


class MaskedReader:
    """Attention over the whole sequence with a mask of its own for every layer and head; nothing is compacted."""

    def __init__(self, context: int, kept: tuple[Tensor, ...]) -> None:
        self.context, self.kept = context, kept

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Explicit softmax over visible columns: causal, and for rows after the context only kept context columns."""
        heads, tokens = queries.shape[1], queries.shape[2]
        visible = torch.ones(heads, tokens, tokens, dtype=torch.bool).tril()
        kept = self.kept[layer].repeat_interleave(heads // self.kept[layer].shape[0], dim=0)
        visible[:, self.context :, : self.context] = kept[:, None]
        group = heads // keys.shape[1]
        logits = queries @ keys.repeat_interleave(group, 1).mT * scaling
        weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
        return weights @ values.repeat_interleave(group, 1)


def masked_forward(model: object, ids: Tensor, context: int, kept: tuple[Tensor, ...]) -> Tensor:
    """Logits [tokens, vocabulary] of `ids`, whose first `context` tokens are later seen only where `kept` says."""
    reader = MaskedReader(context, kept)
    token = bridge._reader.set(reader)
    try:
        with torch.inference_mode():
            return model(input_ids=ids[None], use_cache=False).logits[0]  # type: ignore[operator]
    finally:
        bridge._reader.reset(token)
