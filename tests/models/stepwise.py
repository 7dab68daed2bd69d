"""The oracle of eviction over time: one forward over the whole sequence whose attention is written out row by row.

What each row sees is a set of positions for every KV head, what they are worth a dictionary. Nothing is shared with
kvbench but the place where transformers calls.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.models import bridge


@dataclass
class StepwiseReader:
    """Rows before `first` see everything before them; then comes a cut after each `block` rows, and after `first`.

    accumulate: scores add up over all rows (H2O), else those of the last row before a cut alone decide (TOVA).
    """

    first: int
    block: int
    budget: int
    recent: int
    accumulate: bool

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> Tensor:
        heads, tokens = queries.shape[1:3]
        group = heads // keys.shape[1]
        outputs = torch.empty_like(queries)
        for kv_head in range(keys.shape[1]):
            kept: list[int] = []
            worth: dict[int, float] = {}
            for row in range(tokens):
                kept.append(row)
                mine = slice(kv_head * group, (kv_head + 1) * group)
                logits = queries[0, mine, row] @ keys[0, kv_head, kept].T * rule.scaling
                weights = logits.softmax(-1)
                outputs[0, mine, row] = weights @ values[0, kv_head, kept]
                if not self.accumulate:
                    worth = {}
                for position, weight in zip(kept, weights.mean(0).tolist(), strict=True):
                    worth[position] = worth.get(position, 0.0) + weight
                read = row + 1 - self.first
                if read >= 0 and (read % self.block == 0 or row + 1 == tokens):
                    kept = self.cut(kept, worth, row)
                    worth = {position: worth[position] for position in kept}
        return outputs

    def cut(self, kept: list[int], worth: dict[int, float], row: int) -> list[int]:
        old = [position for position in kept if position <= row - self.recent]
        new = [position for position in kept if position > row - self.recent]
        best = sorted(old, key=lambda position: -worth[position])[: max(0, self.budget - len(new))]
        return sorted(best) + new if len(kept) > self.budget else kept


def stepwise_forward(model: Callable[..., object], ids: Tensor, reader: StepwiseReader) -> Tensor:
    """Logits [tokens, vocabulary] of `ids`."""
    token = bridge._attention_cache.set(reader)
    try:
        with torch.inference_mode():
            return model(input_ids=ids[None], use_cache=False).logits[0]  # type: ignore[attr-defined]
    finally:
        bridge._attention_cache.reset(token)
