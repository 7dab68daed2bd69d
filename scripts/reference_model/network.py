"""A Llama for training on CPUs: products in bfloat16, weights in float32 under the names of transformers.

Attention is written as batched matrix products over blocks of queries, which use the processor's bfloat16 instructions,
and the rest of each layer is compiled: three times as fast as transformers' own model on a core with AMX.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

BLOCK, BLOCKS = 128, 4
"""Queries whose attention is computed at a time, in a row of at most so many blocks (of eight, torch 2.13's compiled
gradient of the keys was NaN); keys later than the block are left out."""
NEVER = -1e30


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, and the base of its rotary positions."""

    vocabulary: int
    hidden: int = 192
    layers: int = 7
    query_heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    inner: int = 512
    theta: float = 1e4


class Norm(nn.Module):
    """RMS norm in float32."""

    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden: Tensor) -> Tensor:
        """The normed states in bfloat16, in their shape."""
        wide = hidden.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight).bfloat16()


class Projection(nn.Linear):
    """A matrix without bias, multiplied in bfloat16."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, bias=False)
        nn.init.normal_(self.weight, std=0.7 * inputs**-0.5)

    def forward(self, input: Tensor) -> Tensor:
        """input [..., inputs] in bfloat16."""
        return linear(input, self.weight.bfloat16())


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.q_proj = Projection(shape.hidden, shape.query_heads * shape.head_dim)
        self.k_proj = Projection(shape.hidden, shape.kv_heads * shape.head_dim)
        self.v_proj = Projection(shape.hidden, shape.kv_heads * shape.head_dim)
        self.o_proj = Projection(shape.query_heads * shape.head_dim, shape.hidden)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        """hidden [rows, tokens, hidden]; cos and sin [rows, 1, tokens, head_dim / 2]; bias [rows or 1, tokens, tokens]
        is added to the scores.
        """
        shape, (rows, tokens, _) = self.shape, hidden.shape

        def heads(projection: Projection, count: int) -> Tensor:
            return projection(hidden).view(rows, tokens, count, shape.head_dim).transpose(1, 2)

        queries = rotated(heads(self.q_proj, shape.query_heads), cos, sin) * shape.head_dim**-0.5
        keys, values = rotated(heads(self.k_proj, shape.kv_heads), cos, sin), heads(self.v_proj, shape.kv_heads)
        values = torch.cat([values, torch.ones_like(values[..., :1])], -1)  # the last column sums the weights
        outputs, size = [], max(BLOCK, -(-tokens // BLOCKS))
        for start in range(0, tokens, size):
            end = min(tokens, start + size)
            block = queries[:, :, start:end].reshape(rows * shape.kv_heads, -1, shape.head_dim)
            seen_keys, seen_values = (part[:, :, :end].flatten(0, 1) for part in (keys, values))
            scores = torch.bmm(block, seen_keys.transpose(1, 2)).view(rows, shape.kv_heads, -1, end - start, end)
            scores = scores + bias[:, None, None, start:end, :end]
            weights = (scores - scores.amax(-1, keepdim=True).detach()).exp()
            mixed = torch.bmm(weights.view(rows * shape.kv_heads, -1, end), seen_values)
            mixed = mixed.view(rows, shape.query_heads, end - start, shape.head_dim + 1)
            outputs.append(mixed[..., :-1] / mixed[..., -1:])
        return self.o_proj(torch.cat(outputs, 2).transpose(1, 2).reshape(rows, tokens, -1))


class FeedForward(nn.Module):
    """down(silu(gate(x)) up(x))."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = Projection(shape.hidden, shape.inner)
        self.up_proj = Projection(shape.hidden, shape.inner)
        self.down_proj = Projection(shape.inner, shape.hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [rows, tokens, hidden]."""
        return self.down_proj(silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), FeedForward(shape)
        self.input_layernorm, self.post_attention_layernorm = Norm(shape.hidden), Norm(shape.hidden)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        """As `Attention.forward`."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin, bias)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)


class TrainingLlama(nn.Module):
    """The model; `state_dict` is that of LlamaForCausalLM, without the tied output matrix."""

    frequencies: Tensor

    def __init__(self, shape: Shape, seed: int = 1):
        super().__init__()
        self.shape = shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = Decoder(shape)
        half = torch.arange(shape.head_dim // 2)
        self.register_buffer("frequencies", shape.theta ** (-half / len(half)), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, hidden_keys: Tensor, blind_from: Tensor) -> Tensor:
        """Normed states [rows, tokens, hidden]. ids, positions [rows, tokens]; queries from `blind_from` [rows] on do
        not see the keys that `hidden_keys` [rows, tokens] marks.
        """
        angles = positions[:, None, :, None].float() * self.frequencies
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        at = torch.arange(ids.shape[1], device=ids.device)
        unseen = (at > at[:, None])[None]
        if hidden_keys.any():
            unseen = unseen | (hidden_keys[:, None] & (at[:, None] >= blind_from[:, None, None]))
        bias = torch.zeros(unseen.shape, dtype=torch.bfloat16, device=ids.device).masked_fill_(unseen, NEVER)
        hidden = self.model.embed_tokens(ids).bfloat16()
        for layer in self.model.layers:
            hidden = layer(hidden, cos, sin, bias)
        return self.model.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, hidden] -> float32 [n, vocabulary]."""
        return linear(hidden, self.model.embed_tokens.weight.bfloat16()).float()


def rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """heads [rows, heads, tokens, head_dim], turned by their positions."""
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
