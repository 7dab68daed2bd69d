"""Attention over dense and ragged caches in plain PyTorch: the reference twin of every faster kernel.

It knows nothing about models or policies. Queries that are read together are always the newest tokens of the sequence,
so that row i of T rows sees all but the newest T - 1 - i tokens. Query head h reads KV head h // group.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from kvbench.cache import Window

COLUMN_CHUNK = 1024
"""Columns handled at a time where every window row meets every cached token: small enough to stay in a CPU's caches."""


def causal(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    values: Float[Tensor, "kv_heads tokens head_dim"],
    scaling: float,
) -> Float[Tensor, "heads queries head_dim"]:
    """Outputs of the newest rows over all tokens, in the dtype of the inputs."""
    rows, tokens = queries.shape[1], keys.shape[1]
    whole = rows == tokens
    bias = None if whole or rows == 1 else causal_lower_right(rows, tokens)
    return F.scaled_dot_product_attention(
        queries[None], keys[None], values[None], attn_mask=bias, is_causal=whole, scale=scaling, enable_gqa=True
    )[0]


def observe(
    queries: Float[Tensor, "heads queries head_dim"],
    outputs: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    scaling: float,
) -> Window:
    """Record the newest rows as evidence: adds the log-sum-exp of their logits, in float32, chunk by chunk."""
    parts = [chunk.logsumexp(dim=-1) for _, chunk in logits_by_chunk(queries, keys, scaling)]
    return Window(queries, outputs, torch.stack(parts).logsumexp(dim=0), scaling)


def logits_by_chunk(
    queries: Float[Tensor, "heads queries head_dim"], keys: Float[Tensor, "kv_heads tokens head_dim"], scaling: float
) -> Iterator[tuple[slice, Float[Tensor, "heads queries columns"]]]:
    """Scaled float32 logits of the newest rows, a chunk of columns at a time; -inf where a row cannot see a column."""
    heads, rows, head_dim = queries.shape
    kv_heads, tokens, _ = keys.shape
    grouped = (queries.float() * scaling).reshape(kv_heads, heads // kv_heads * rows, head_dim)
    for start in range(0, tokens, COLUMN_CHUNK):
        columns = slice(start, min(start + COLUMN_CHUNK, tokens))
        logits = (grouped @ keys[:, columns].float().mT).view(heads, rows, columns.stop - start)
        if columns.stop > tokens - rows + 1:
            logits.masked_fill_(hidden(rows, tokens, columns, queries.device), -torch.inf)
        yield columns, logits


def hidden(rows: int, tokens: int, columns: slice, device: torch.device) -> Bool[Tensor, "queries columns"]:
    """True where one of the newest `rows` of `tokens` positions stands before the column."""
    positions = torch.arange(tokens - rows, tokens, device=device)
    return torch.arange(columns.start, columns.stop, device=device) > positions[:, None]


def over_prefix_and_tail(
    queries: Float[Tensor, "segments rows head_dim"],
    keys: Float[Tensor, "segments prefix head_dim"],
    values: Float[Tensor, "segments prefix head_dim"],
    tail_keys: Float[Tensor, "segments tail head_dim"],
    tail_values: Float[Tensor, "segments tail head_dim"],
    hidden_tail: Bool[Tensor, "rows tail"] | None,
    scaling: float,
) -> Float[Tensor, "segments rows head_dim"]:
    """One softmax over a frozen prefix, all of it older than every row, and a tail that only `hidden_tail` restricts.

    A segment is one stored head of one cell; its rows are the query heads of the group times the tokens being read.
    The softmax runs in float32 for half precision inputs.
    """
    logits = torch.cat((queries @ keys.mT, queries @ tail_keys.mT), dim=-1) * scaling
    prefix = keys.shape[1]
    if hidden_tail is not None:
        logits[..., prefix:].masked_fill_(hidden_tail, -torch.inf)
    wide = torch.float32 if logits.dtype.itemsize < 4 else logits.dtype
    weights = logits.softmax(dim=-1, dtype=wide).to(values.dtype)
    return weights[..., :prefix] @ values + weights[..., prefix:] @ tail_values
