"""The oracle of positions by cache: keys are kept before their rotation and all of them rotated anew for every block.

A forward pass of Llama written out over the weights of a model: nothing is shared with kvbench or its bridge.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Cut = Callable[[Tensor], list[int]]
"""The slots that stay, ascending, of slots with these running sums of attention weights."""


@dataclass
class Head:
    """What one KV head of one layer holds: keys that were never rotated, values, and weights summed over all rows."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    worth: list[float] = field(default_factory=list)

    def keep(self, slots: Sequence[int]) -> None:
        self.keys, self.values, self.worth = (
            [part[at] for at in slots] for part in (self.keys, self.values, self.worth)
        )


def rotated(model: Any, vectors: Tensor, positions: Tensor) -> Tensor:
    """Vectors [tokens, head_dim] rotated by the model's own tables."""
    cos, sin = (part[0] for part in model.model.rotary_emb(vectors[None], positions[None]))
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cos + torch.cat((-second, first), dim=-1) * sin


@torch.inference_mode()
def renumbered_forward(model: Any, blocks: Sequence[tuple[Tensor, Cut | None]]) -> Iterator[Tensor]:
    """Logits [tokens, vocabulary] of one block after another; after each, every head is cut, where a cut is given."""
    heads = [[Head() for _ in range(model.config.num_key_value_heads)] for _ in model.model.layers]
    for ids, cut in blocks:
        hidden = model.model.embed_tokens(ids)
        for layer, held in zip(model.model.layers, heads, strict=True):
            hidden = hidden + _attention(model, layer.self_attn, layer.input_layernorm(hidden), held)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            for head in held if cut else ():
                head.keep(cut(torch.tensor(head.worth)))
        yield model.lm_head(model.model.norm(hidden))


def _attention(model: Any, attention: Any, normed: Tensor, held: list[Head]) -> Tensor:
    new, size = len(normed), attention.head_dim
    queries = attention.q_proj(normed).view(new, -1, size)
    keys, values = (project(normed).view(new, -1, size) for project in (attention.k_proj, attention.v_proj))
    group = queries.shape[1] // len(held)
    outputs = torch.empty_like(queries)
    for index, head in enumerate(held):
        head.keys += keys[:, index].unbind()
        head.values += values[:, index].unbind()
        head.worth += [0.0] * new
        places = torch.arange(len(head.keys))
        turned, stacked = rotated(model, torch.stack(head.keys), places), torch.stack(head.values)
        for member in range(index * group, (index + 1) * group):
            logits = rotated(model, queries[:, member], places[-new:]) @ turned.T * size**-0.5
            logits = logits.masked_fill(places > places[-new:, None], -torch.inf)
            weights = logits.softmax(-1)
            outputs[:, member] = weights @ stacked
            head.worth = [old + more / group for old, more in zip(head.worth, weights.sum(0).tolist(), strict=True)]
    return attention.o_proj(outputs.flatten(1))
