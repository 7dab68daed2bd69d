"""Causal attention in blocks of queries, for training on a CPU in bfloat16: half the time of torch's fused kernel.

The upper triangle is not computed, and products run as batched matrix products, which use the processor's bfloat16
instructions where the fused kernel does not. Registered with transformers under `NAME`.
"""

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "chunked_causal"
CHUNK = 128
NEVER = -1e4


class Chunked(torch.autograd.Function):
    """softmax(q k^T scale) v over keys not later than the query, less what `seen` (bool, false: hidden) hides.

    q and the result are [batch, kv heads, group, tokens, size]; k and v [batch, kv heads, tokens, size]; seen
    [batch, 1, tokens, tokens] or None.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
        """Keep the probabilities of every block for the backward pass."""
        batch, heads, group, tokens, size = q.shape
        out, kept = torch.empty_like(q), []
        for start in range(0, tokens, CHUNK):
            end = min(tokens, start + CHUNK)
            queries = (q[:, :, :, start:end] * scale).reshape(batch * heads, -1, size)
            scores = torch.bmm(queries, k[:, :, :end].reshape(batch * heads, end, size).transpose(1, 2))
            view = scores.view(batch, heads, group, end - start, end)
            later = torch.ones(end - start, end - start, dtype=torch.bool, device=q.device).triu_(1)
            view[..., start:end].masked_fill_(later, NEVER)
            if seen is not None:
                view.masked_fill_(~seen[:, :, None, start:end, :end], NEVER)
            kept.append(torch.softmax(scores, -1))
            mixed = torch.bmm(kept[-1], v[:, :, :end].reshape(batch * heads, end, size))
            out[:, :, :, start:end] = mixed.view(batch, heads, group, end - start, size)
        ctx.save_for_backward(q, k, v, out, *kept)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):
        """Gradients of q, k and v."""
        q, k, v, out, *kept = ctx.saved_tensors
        batch, heads, _, tokens, size = q.shape
        to_q, to_k, to_v = torch.empty_like(q), *(torch.zeros_like(k).view(batch * heads, tokens, size) for _ in "kv")
        for probabilities, start in zip(kept, range(0, tokens, CHUNK), strict=True):
            end = min(tokens, start + CHUNK)
            part = grad[:, :, :, start:end].reshape(batch * heads, -1, size)
            queries = (q[:, :, :, start:end] * ctx.scale).reshape(batch * heads, -1, size)
            to_v[:, :end] += torch.bmm(probabilities.transpose(1, 2), part)
            scores = torch.bmm(part, v[:, :, :end].reshape(batch * heads, end, size).transpose(1, 2))
            mean = (part.float() * out[:, :, :, start:end].reshape_as(part).float()).sum(-1, keepdim=True)
            scores.sub_(mean.to(scores.dtype)).mul_(probabilities)
            product = torch.bmm(scores, k[:, :, :end].reshape(batch * heads, end, size)).mul_(ctx.scale)
            to_q[:, :, :, start:end] = product.view_as(to_q[:, :, :, start:end])
            to_k[:, :end] += torch.bmm(scores.transpose(1, 2), queries)
        return to_q, to_k.view_as(k), to_v.view_as(v), None, None


def chunked(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more
) -> tuple[Tensor, None]:
    """The form in which transformers calls attention: query [batch, heads, tokens, size]."""
    if torch.is_autocast_enabled(query.device.type):
        lower = torch.get_autocast_dtype(query.device.type)
        query, key, value = (tensor.to(lower) for tensor in (query, key, value))
    batch, heads, tokens, size = query.shape
    grouped = query.view(batch, key.shape[1], -1, tokens, size)
    out = Chunked.apply(grouped, key.contiguous(), value.contiguous(), attention_mask, more["scaling"])
    return out.view(batch, heads, tokens, size).transpose(1, 2).contiguous(), None


def register() -> str:
    """Make the function known to transformers; returns its name."""
    AttentionInterface.register(NAME, chunked)
    return NAME
