"""Attention over dense and ragged caches in plain PyTorch: the reference twin of every faster kernel.

It knows nothing about models or policies. Queries that are read together are always the newest tokens of the sequence,
so that row i of T rows sees all but the newest T - 1 - i tokens. Query head h reads KV head h // group.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.kernels.choice import Kernels, ragged_decode_of
from kvbench.cache.kv_cache import LayerCache, Window, readers, split_by_length

COLUMN_CHUNK = 1024
"""Columns handled at a time where every window row meets every cached token: small enough to stay in a CPU's caches."""

MASKED_ROWS = 512
"""Rows of a later block that a CPU attends with at a time: each part then sees no column behind its own last one."""

LOGITS_AT_ONCE = 2**26
"""Most logits that `explicit` holds at a time: a quarter of a gibibyte in float32."""


@dataclass(frozen=True)
class Rule:
    """How a layer turns queries and keys into attention weights.

    scaling: a logit is q.k * scaling. softcap: logits become softcap * tanh(logit / softcap) (Gemma 2). sinks: one more
    logit a query head, learned and without a value, takes part in the softmax, so that the weights over tokens sum to
    less than 1 (GPT-OSS). sliding_window: a query at position p sees the positions above p - sliding_window only.
    """

    scaling: float
    softcap: float | None = None
    sinks: Float[Tensor, "heads"] | None = None
    sliding_window: int | None = None


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Soft-capped logits, or the logits themselves where there is no cap."""
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def causal(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    values: Float[Tensor, "kv_heads tokens head_dim"],
    scaling: float,
) -> Float[Tensor, "heads queries head_dim"]:
    """Outputs of the newest rows over all tokens, in the dtype of the inputs, by torch's fused attention."""
    rows, tokens = queries.shape[1], keys.shape[1]
    whole = rows == tokens
    if not whole and rows > MASKED_ROWS and keys.device.type == "cpu":  # where the mask is made and nothing skipped
        parts, first = [], tokens - rows
        for start in range(0, rows, MASKED_ROWS):
            block = queries[:, start : start + MASKED_ROWS]
            stop = first + start + block.shape[1]
            parts.append(causal(block, keys[:, :stop], values[:, :stop], scaling))
        return torch.cat(parts, dim=1)
    bias = None
    if not whole and rows > 1:
        from torch.nn.attention.bias import causal_lower_right  # importing it takes as long as importing torch

        bias = causal_lower_right(rows, tokens)
    if keys.is_cuda and keys.itemsize > 2:  # the fused kernel for wide types knows no groups
        keys, values = (part.repeat_interleave(len(queries) // len(part), dim=0) for part in (keys, values))
    return F.scaled_dot_product_attention(
        queries[None], keys[None], values[None], attn_mask=bias, is_causal=whole, scale=scaling, enable_gqa=True
    )[0]


def causal_with_lse(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    values: Float[Tensor, "kv_heads tokens head_dim"],
    scaling: float,
) -> tuple[Float[Tensor, "heads queries head_dim"], Float[Tensor, "heads queries"]]:
    """`causal` on a CPU, to the bit, and the log-sum-exp of the rows in float32, which the same pass knows.

    For inputs in float32 or float64.
    """
    rows, tokens = queries.shape[1], keys.shape[1]
    step, outputs, norms = rows if rows == tokens else MASKED_ROWS, [], []
    for start in range(0, rows, step):
        block = queries[:, start : start + step]
        count, stop = block.shape[1], tokens - rows + start + block.shape[1]
        mask = None
        if 1 < count < stop:
            unseen = hidden(count, stop, slice(0, stop), queries.device)
            mask = queries.new_zeros(count, stop).masked_fill_(unseen, -torch.inf)[None, None]
        arrays = (part[None] for part in (block, keys[:, :stop], values[:, :stop]))
        block_outputs, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *arrays, 0.0, count == stop, attn_mask=mask, scale=scaling
        )
        outputs.append(block_outputs[0])
        norms.append(lse[0].float())
    return torch.cat(outputs, dim=1), torch.cat(norms, dim=1)


def fused(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    values: Float[Tensor, "kv_heads tokens head_dim"],
    rule: Rule,
) -> Float[Tensor, "heads queries head_dim"]:
    """Outputs of the newest rows by torch's fused attention where that can express the rule.

    It knows neither caps nor sinks: such layers are computed by `explicit`. A sliding window is cut into blocks of rows
    that together see at most twice the window, so that no mask of rows times tokens is made.
    """
    if rule.softcap is not None or rule.sinks is not None:
        return explicit(queries, keys, values, rule)
    rows, tokens, window = queries.shape[1], keys.shape[1], rule.sliding_window
    if window is None or window >= tokens:
        return causal(queries, keys, values, rule.scaling)
    parts, first = [], tokens - rows
    for start in range(0, rows, max(window, COLUMN_CHUNK)):
        block = queries[:, start : start + max(window, COLUMN_CHUNK)]
        stop = first + start + block.shape[1]
        begin = max(0, first + start - window + 1)
        mask = ~hidden(block.shape[1], stop, slice(begin, stop), queries.device, window)
        in_window = (keys[None, :, begin:stop], values[None, :, begin:stop])
        parts.append(
            F.scaled_dot_product_attention(
                block[None], *in_window, attn_mask=mask, scale=rule.scaling, enable_gqa=True
            )[0]
        )
    return torch.cat(parts, dim=1)


def explicit(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    values: Float[Tensor, "kv_heads tokens head_dim"],
    rule: Rule,
) -> Float[Tensor, "heads queries head_dim"]:
    """Outputs of the newest rows with the softmax written out, in float32 or wider: the truth that others must equal.

    Rows are taken a few at a time, each with the columns that it can see.
    """
    heads, rows, head_dim = queries.shape
    kv_heads, tokens = keys.shape[:2]
    step, first, parts = max(1, LOGITS_AT_ONCE // (heads * tokens)), tokens - rows, []
    for start in range(0, rows, step):
        block = queries[:, start : start + step]
        stop = first + start + block.shape[1]
        begin = 0 if rule.sliding_window is None else max(0, first + start - rule.sliding_window + 1)
        grouped = block.reshape(kv_heads, -1, head_dim)
        logits = (grouped @ keys[:, begin:stop].mT * rule.scaling).view(heads, block.shape[1], stop - begin)
        unseen = hidden(block.shape[1], stop, slice(begin, stop), queries.device, rule.sliding_window)
        weights = softmax(capped(logits, rule.softcap).masked_fill(unseen, -torch.inf), sinks_of(rule, logits))
        weights = weights.to(values.dtype).view(kv_heads, -1, stop - begin)
        parts.append((weights @ values[:, begin:stop]).view(block.shape))
    return torch.cat(parts, dim=1)


def sinks_of(rule: Rule, logits: Float[Tensor, "heads queries columns"]) -> Float[Tensor, "heads queries"] | None:
    """The sink of each row."""
    return None if rule.sinks is None else rule.sinks.to(logits.dtype)[:, None].expand(logits.shape[:2])


def softmax(
    logits: Float[Tensor, "*rows columns"], sinks: Float[Tensor, "*rows"] | None
) -> Float[Tensor, "*rows columns"]:
    """Weights over the columns in float32 or wider; a row's sink, where it has one, takes its share and is dropped."""
    wide = torch.float32 if logits.dtype.itemsize < 4 else logits.dtype
    if sinks is None:
        return logits.softmax(dim=-1, dtype=wide)
    return torch.cat((logits, sinks[..., None]), dim=-1).softmax(dim=-1, dtype=wide)[..., :-1]


def observe(
    queries: Float[Tensor, "heads queries head_dim"],
    outputs: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    scaling: float,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
) -> Window:
    """Record the newest rows for scores: adds the log-sum-exp of their logits, in float32, chunk by chunk."""
    parts = [chunk.logsumexp(dim=-1) for _, chunk in logits_by_chunk(queries, keys, scaling, softcap)]
    if sinks is not None:
        parts.append(sinks.float()[:, None].expand(parts[0].shape))
    return Window(queries, outputs, torch.stack(parts).logsumexp(dim=0), scaling, softcap)


def over_layer(
    queries: Float[Tensor, "heads queries head_dim"], layer: LayerCache, rule: Rule, kernels: Kernels = "torch"
) -> Window:
    """Outputs and log-sum-exp of the newest rows over what an evictable layer holds, their own pairs included.

    A single row sees every pair, so that a kernel for ragged prefixes can attend; several rows stay in PyTorch.
    """
    assert layer.evictable and rule.sliding_window is None
    decode = ragged_decode_of(kernels)
    if decode is not None and queries.shape[1] == 1:
        return _row_over_layer(queries, layer, rule, decode)
    parts, group = {}, layer.query_heads // layer.cache_heads
    for heads, part in split_by_length(layer):
        rows, head_rule = queries, rule
        if len(heads) < layer.cache_heads:
            chosen = readers(heads, group)
            rows, head_rule = queries[chosen], replace(rule, sinks=None if rule.sinks is None else rule.sinks[chosen])
        outputs = fused(rows, *part.dense, head_rule)
        parts[heads] = observe(rows, outputs, part.dense[0], head_rule.scaling, head_rule.softcap, head_rule.sinks)
    if len(parts) == 1:
        return next(iter(parts.values()))
    every = torch.tensor([head for heads in parts for head in readers(heads, group)]).argsort()
    outputs = torch.cat([part.outputs for part in parts.values()])[every]
    lse = torch.cat([part.lse for part in parts.values()])[every]
    return Window(queries, outputs, lse, rule.scaling, rule.softcap)


def _row_over_layer(
    queries: Float[Tensor, "heads 1 head_dim"], layer: LayerCache, rule: Rule, decode: Callable[..., Any]
) -> Window:
    """`over_layer` for one row by a twin of `ragged_decode`; a sink takes its share behind it."""
    bounds = torch.tensor(layer.offsets, device=queries.device)
    segments = queries.reshape(layer.cache_heads, -1, queries.shape[2]), layer.keys, layer.values
    options = {"softcap": rule.softcap, "longest": max(layer.lengths)}
    outputs, lse = decode(*segments, bounds[:-1], bounds.diff(), rule.scaling, **options)
    outputs, lse = outputs.reshape(queries.shape), lse.reshape(queries.shape[:2]).float()
    if rule.sinks is not None:
        whole = torch.logaddexp(lse, rule.sinks.float()[:, None])
        outputs, lse = outputs.float() * (lse - whole).exp()[..., None], whole
    return Window(queries, outputs.to(queries.dtype), lse, rule.scaling, rule.softcap)


def logits_by_chunk(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    scaling: float,
    softcap: float | None = None,
) -> Iterator[tuple[slice, Float[Tensor, "heads queries columns"]]]:
    """Scaled, capped float32 logits of the newest rows by chunks of columns; -inf where a row cannot see a column."""
    heads, rows, head_dim = queries.shape
    kv_heads, tokens, _ = keys.shape
    grouped = (queries.float() * scaling).reshape(kv_heads, heads // kv_heads * rows, head_dim)
    for start in range(0, tokens, COLUMN_CHUNK):
        columns = slice(start, min(start + COLUMN_CHUNK, tokens))
        logits = (grouped @ keys[:, columns].float().mT).view(heads, rows, columns.stop - start)
        logits = capped(logits, softcap)
        if columns.stop > tokens - rows + 1:
            logits.masked_fill_(hidden(rows, tokens, columns, queries.device), -torch.inf)
        yield columns, logits


def hidden(
    rows: int, tokens: int, columns: slice, device: torch.device, sliding_window: int | None = None
) -> Bool[Tensor, "queries columns"]:
    """True where one of the newest `rows` of `tokens` positions stands before the column, or a window or more after."""
    positions = torch.arange(tokens - rows, tokens, device=device)[:, None]
    stand = torch.arange(columns.start, columns.stop, device=device)
    return stand > positions if sliding_window is None else (stand > positions) | (stand <= positions - sliding_window)


def over_segments(
    queries: Float[Tensor, "segments rows head_dim"],
    keys: Float[Tensor, "segments pairs head_dim"],
    values: Float[Tensor, "segments pairs head_dim"],
    hidden_tail: Bool[Tensor, "rows tail"] | None,
    scaling: float,
    hidden_prefix: Bool[Tensor, "rows prefix"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "segments rows"] | None = None,
) -> Float[Tensor, "segments rows head_dim"]:
    """One softmax over all pairs of a segment; the masks hide what a row misses of the newest and of the oldest.

    A segment is one cache head of one cell; its rows are the query heads of the group times the tokens being read.
    The softmax runs in float32 for half precision inputs.
    """
    logits = capped(torch.bmm(queries, keys.mT).mul_(scaling), softcap)
    if hidden_tail is not None:
        logits[..., keys.shape[1] - hidden_tail.shape[1] :].masked_fill_(hidden_tail, -torch.inf)
    if hidden_prefix is not None:
        logits[..., : hidden_prefix.shape[1]].masked_fill_(hidden_prefix, -torch.inf)
    return torch.bmm(softmax(logits, sinks).to(values.dtype), values)
