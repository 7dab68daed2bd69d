"""What probes must find, by brute force: the model's own projections, and loops over heads and pairs in float64."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

Array = np.ndarray


@dataclass(frozen=True)
class Arrays:
    """Queries [heads, tokens, d], keys and values [kv_heads, tokens, d], output matrix [hidden, heads * d]."""

    queries: Array
    keys: Array
    values: Array
    matrix: Array

    @property
    def group(self) -> int:
        return len(self.queries) // len(self.keys)

    def weights(self, head: int, row: int, stay: list[int]) -> Array:
        """The softmax of a row over the columns that stay."""
        keys = self.keys[head // self.group][stay]
        logits = keys @ self.queries[head, row] / math.sqrt(keys.shape[1])
        powers = np.exp(logits - logits.max())
        return powers / powers.sum()

    def output(self, head: int, row: int, stay: list[int]) -> Array:
        """What a head puts out at a row when only these columns are there."""
        return self.weights(head, row, stay) @ self.values[head // self.group][stay]


def arrays_of(model: LlamaForCausalLM, ids: torch.Tensor) -> list[Arrays]:
    """Every layer of a Llama that reads `ids`, from the hidden states that transformers hands to its attention."""
    inputs: list[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, __, given: inputs.append((given["hidden_states"], given["position_embeddings"])), with_kwargs=True
        )
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids[None])
    for hook in hooks:
        hook.remove()
    layers = []
    for layer, (hidden, (cos, sin)) in zip(model.model.layers, inputs, strict=True):
        attention = layer.self_attn
        parts = [
            projection(hidden).view(1, len(ids), -1, attention.head_dim).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        ]
        queries, keys = apply_rotary_pos_emb(parts[0], parts[1], cos, sin)
        arrays = (part[0].detach().double().numpy() for part in (queries, keys, parts[2]))
        layers.append(Arrays(*arrays, attention.o_proj.weight.detach().double().numpy()))
    return layers


def without_one(arrays: Arrays, row: int, tokens: int, columns: int, stored: int, whole: bool) -> Array:
    """Squared errors [stored heads, tokens] when a pair is removed at a row that sees `columns` columns."""
    heads, size = len(arrays.queries), arrays.keys.shape[2]
    readers, errors = heads // stored, np.zeros((stored, tokens))
    every = list(range(columns))
    before = np.concatenate([arrays.output(head, row, every) for head in range(heads)])
    for store in range(stored):
        for gone in range(tokens):
            stay = [column for column in every if column != gone]
            after = before.copy()
            for head in range(store * readers, (store + 1) * readers):
                after[head * size : (head + 1) * size] = arrays.output(head, row, stay)
            moved = arrays.matrix @ (after - before) if whole else after - before
            errors[store, gone] = (moved**2).sum()
    return errors
