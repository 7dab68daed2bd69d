"""Attention over dense and ragged caches in plain PyTorch: the reference for every faster kernel.

Queries that are read together are always the newest tokens of the sequence, so that row i of T rows attends to all but
the newest T - 1 - i tokens. Query head h reads KV head h // group.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.kernels.choice import Kernels, column_sums_of, ragged_decode_of
from kvbench.cache.kv_cache import LayerCache, ObservationWindow, dense_parts, query_heads_of
from kvbench.cache.shapes import Dense, Rows

COLUMN_CHUNK = 1024
"""Columns handled at a time where every window row meets every cached token: small enough to stay in a CPU's caches."""
CHUNK_LOGITS = 2**23
"""Logits of such a chunk on a GPU, where many small chunks are many launches: 32 MiB in float32, of which a score holds
several at a time, less than one layer of an 8B model at 128K tokens (`tests/run/test_live_bytes.py`)."""
ROW_BLOCK = 512
"""Observed rows that a score handles at a time."""
OBSERVED_ROWS = 4096
"""Rows whose logits over such a chunk a GPU holds at a time: half a gibibyte for 32 heads."""
MASKED_ROWS = 512
"""Rows of a later block that a CPU processes at a time, so that few masked columns are computed."""
PAIRS_OF_A_PART = 2048
"""KV pairs of a segment that a GPU sums at a time while decoding in plain PyTorch."""
LOGITS_AT_ONCE = 2**26
"""Most logits that `explicit` holds at a time: a quarter of a gibibyte in float32."""


@dataclass(frozen=True)
class AttentionParams:
    """How a layer turns queries and keys into attention weights.

    scaling: a logit is q.k * scaling. softcap: logits become softcap * tanh(logit / softcap) (Gemma 2). sinks: one
    learned extra logit per query head, without a value, is part of the softmax, so that the weights over tokens sum to
    less than 1 (GPT-OSS). sliding_window: a query at position p attends only to positions above p - sliding_window.
    choice: of a layer that itself chooses which of these a query reads: `joined` adds the numbers that it chooses by to
    new arrays, without changing a logit or an output, and `observer` makes an `observe` of what is read.
    """

    scaling: float
    softcap: float | None = None
    sinks: Float[Tensor, "heads"] | None = None
    sliding_window: int | None = None
    choice: Any = None

    def within(self, max_length: int | None) -> "AttentionParams":
        """Return the rule for sequences of at most `max_length` tokens: without a sliding window that is at least as
        long.
        """
        if self.sliding_window is None or max_length is None or self.sliding_window < max_length:
            return self
        return replace(self, sliding_window=None)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Soft-capped logits; unchanged if `softcap` is None."""
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def row_blocks(queries: Rows, tokens: int, step: int) -> Iterator[tuple[Rows, int]]:
    """Yield the newest rows of `tokens` tokens, `step` at a time, each block with the number of tokens up to its last
    row.
    """
    stop = tokens - queries.shape[1]
    for block in queries.split(step, dim=1):
        stop += block.shape[1]
        yield block, stop


def causal(queries: Rows, keys: Dense, values: Dense, scaling: float) -> Rows:
    """Return outputs of the newest rows over all tokens, in the dtype of the inputs, by torch's fused attention."""
    rows, tokens = queries.shape[1], keys.shape[1]
    square = rows == tokens
    if not square and rows > MASKED_ROWS and keys.device.type == "cpu":  # a CPU computes masked columns too
        blocks = row_blocks(queries, tokens, MASKED_ROWS)
        return torch.cat([causal(block, keys[:, :stop], values[:, :stop], scaling) for block, stop in blocks], dim=1)
    bias = None
    if not square and rows > 1 and keys.device.type == "cpu":
        bias = hidden(rows, tokens, slice(0, tokens), keys.device).logical_not_()
    elif not square and rows > 1:
        from torch.nn.attention.bias import causal_lower_right  # importing it takes as long as importing torch

        bias = causal_lower_right(rows, tokens)
    if keys.is_cuda and keys.itemsize > 2:
        keys, values = for_each_query_head(queries, keys, values)
    return F.scaled_dot_product_attention(
        queries[None], keys[None], values[None], attn_mask=bias, is_causal=square, scale=scaling, enable_gqa=True
    )[0]


def for_each_query_head(queries: Rows, *stores: Dense) -> tuple[Rows, ...]:
    """Return keys or values for each query head: of torch's fused kernels on a GPU only the one for half precision
    without a mask has grouped heads, and torch would write all logits out instead.
    """
    return tuple(store.repeat_interleave(len(queries) // len(store), dim=0) for store in stores)


def causal_with_lse(
    queries: Rows, keys: Dense, values: Dense, scaling: float
) -> tuple[Rows, Float[Tensor, "heads queries"]]:
    """`causal` on a CPU in float32 or float64, to the bit, and the log-sum-exp of the rows in float32."""
    rows, tokens = queries.shape[1], keys.shape[1]
    outputs, norms = [], []
    for block, stop in row_blocks(queries, tokens, rows if rows == tokens else MASKED_ROWS):
        count, mask = block.shape[1], None
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


def fused(queries: Rows, keys: Dense, values: Dense, rule: AttentionParams) -> Rows:
    """Return outputs of the newest rows by torch's fused attention, or by `explicit` for layers with a soft cap or
    sinks.

    With a sliding window, rows are processed in blocks that attend to at most twice the window.
    """
    if rule.softcap is not None or rule.sinks is not None:
        return explicit(queries, keys, values, rule)
    tokens, window = keys.shape[1], rule.sliding_window
    if window is None or window >= tokens:
        return causal(queries, keys, values, rule.scaling)
    parts = []
    for block, stop in row_blocks(queries, tokens, max(window, COLUMN_CHUNK)):
        begin = max(0, stop - block.shape[1] - window + 1)
        mask = ~hidden(block.shape[1], stop, slice(begin, stop), queries.device, window)
        in_window = (keys[:, begin:stop], values[:, begin:stop])
        in_window = for_each_query_head(block, *in_window) if keys.is_cuda else in_window
        arrays = (part[None] for part in (block, *in_window))
        parts.append(F.scaled_dot_product_attention(*arrays, attn_mask=mask, scale=rule.scaling, enable_gqa=True)[0])
    return torch.cat(parts, dim=1)


def explicit(queries: Rows, keys: Dense, values: Dense, rule: AttentionParams) -> Rows:
    """Return outputs of the newest rows, softmax written out in float32 or wider: the reference for all."""
    heads, _, head_dim = queries.shape
    kv_heads, tokens = keys.shape[:2]
    parts = []
    for block, stop in row_blocks(queries, tokens, max(1, LOGITS_AT_ONCE // (heads * tokens))):
        begin = 0 if rule.sliding_window is None else max(0, stop - block.shape[1] - rule.sliding_window + 1)
        grouped = block.reshape(kv_heads, -1, head_dim)
        logits = (grouped @ keys[:, begin:stop].mT * rule.scaling).view(heads, block.shape[1], stop - begin)
        unseen = hidden(block.shape[1], stop, slice(begin, stop), queries.device, rule.sliding_window)
        sinks = None if rule.sinks is None else rule.sinks.to(logits.dtype)[:, None].expand(logits.shape[:2])
        weights = softmax(capped(logits, rule.softcap).masked_fill(unseen, -torch.inf), sinks)
        weights = weights.to(values.dtype).view(kv_heads, -1, stop - begin)
        parts.append((weights @ values[:, begin:stop]).view(block.shape))
    return torch.cat(parts, dim=1)


def softmax(
    logits: Float[Tensor, "*rows columns"], sinks: Float[Tensor, "*rows"] | None
) -> Float[Tensor, "*rows columns"]:
    """Weights over the columns in float32 or wider; the sink of a row, if any, is part of the softmax and dropped."""
    wide = torch.float32 if logits.dtype.itemsize < 4 else logits.dtype
    if sinks is None:
        return logits.softmax(dim=-1, dtype=wide)
    return torch.cat((logits, sinks[..., None]), dim=-1).softmax(dim=-1, dtype=wide)[..., :-1]


def observe(queries: Rows, outputs: Rows, keys: Dense, rule: AttentionParams) -> ObservationWindow:
    """Record the newest rows for scores: adds the log-sum-exp of their logits."""
    return ObservationWindow(queries, outputs, log_sum_exp(queries, keys, rule), rule.scaling, rule.softcap)


def log_sum_exp(queries: Rows, keys: Dense, rule: AttentionParams) -> Float[Tensor, "heads queries"]:
    """Return the log-sum-exp of the logits of the newest rows, sinks included, in float32, chunk by chunk."""
    if keys.device.type != "cpu" and queries.shape[1] > OBSERVED_ROWS:
        blocks = row_blocks(queries, keys.shape[1], OBSERVED_ROWS)
        return torch.cat([log_sum_exp(block, keys[:, :stop], rule) for block, stop in blocks], dim=1)
    chunks = logits_by_chunk(queries, keys, rule.scaling, rule.softcap)
    parts = list(map(lambda chunk: chunk[1].logsumexp(dim=-1), chunks))
    if rule.sinks is not None:
        parts.append(rule.sinks.float()[:, None].expand(parts[0].shape))
    return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(dim=0)


def attend_layer(
    queries: Rows, layer: LayerCache, rule: AttentionParams, kernels: Kernels = "torch", observed: bool = True
) -> ObservationWindow:
    """Return outputs and log-sum-exp of the newest rows over all pairs of an evictable layer, their own included;
    without the latter, which then are zeros, if they are not `observed`.

    A single row attends to every pair, so that a kernel of `ragged_decode` can run; several rows stay in PyTorch.
    """
    assert layer.evictable and rule.sliding_window is None
    decode = ragged_decode_of(kernels)
    if decode is not None and queries.shape[1] == 1:
        return _row_over_layer(queries, layer, rule, decode)
    parts, group = {}, layer.query_heads // layer.cache_heads
    for heads, part in dense_parts(layer):
        rows, head_rule = queries, rule
        if len(heads) < layer.cache_heads:
            chosen = query_heads_of(heads, group)
            rows, head_rule = queries[chosen], replace(rule, sinks=None if rule.sinks is None else rule.sinks[chosen])
        outputs = fused(rows, *part.dense, head_rule)
        lse = log_sum_exp(rows, part.dense[0], head_rule) if observed else outputs.new_zeros(outputs.shape[:2]).float()
        parts[heads] = outputs, lse
    order = torch.tensor([head for heads in parts for head in query_heads_of(heads, group)]).argsort()
    outputs, lse = (part[0] if len(part) == 1 else torch.cat(part)[order] for part in zip(*parts.values(), strict=True))
    return ObservationWindow(queries, outputs, lse, rule.scaling, rule.softcap)


def _row_over_layer(
    queries: Float[Tensor, "heads 1 head_dim"], layer: LayerCache, rule: AttentionParams, decode: Callable[..., Any]
) -> ObservationWindow:
    """`attend_layer` for one row by an implementation of `ragged_decode`; sinks are merged afterwards."""
    bounds = torch.tensor(layer.offsets).to(queries.device, non_blocking=True)
    segments = queries.reshape(layer.cache_heads, -1, queries.shape[2]), layer.keys, layer.values
    options = {"softcap": rule.softcap, "longest": max(layer.lengths)}
    outputs, lse = decode(*segments, bounds[:-1], bounds.diff(), rule.scaling, **options)
    outputs, lse = outputs.reshape(queries.shape), lse.reshape(queries.shape[:2]).float()
    if rule.sinks is not None:
        total = torch.logaddexp(lse, rule.sinks.float()[:, None])
        outputs, lse = outputs.float() * (lse - total).exp()[..., None], total
    return ObservationWindow(queries, outputs.to(queries.dtype), lse, rule.scaling, rule.softcap)


def logits_by_chunk(
    queries: Rows, keys: Dense, scaling: float, softcap: float | None = None
) -> Iterator[tuple[slice, Float[Tensor, "heads queries columns"]]]:
    """Scaled, capped float32 logits of the newest rows by chunks of columns, -inf where a column is masked; callers may
    write to them.
    """
    heads, rows, head_dim = queries.shape
    kv_heads, tokens, _ = keys.shape
    grouped = (queries.float() * scaling).reshape(kv_heads, heads // kv_heads * rows, head_dim)
    step = COLUMN_CHUNK if keys.device.type == "cpu" else max(COLUMN_CHUNK, CHUNK_LOGITS // (heads * rows))
    for start in range(0, tokens, step):
        columns = slice(start, min(start + step, tokens))
        yield columns, _logits_over(columns, grouped, keys, rows, softcap)  # no name holds it while the next is made


def _logits_over(
    columns: slice, grouped: Float[Tensor, "kv_heads group head_dim"], keys: Dense, rows: int, softcap: float | None
) -> Float[Tensor, "heads queries columns"]:
    """Return one chunk of `logits_by_chunk`: scaled queries by KV head, the rows of a query head together."""
    logits = (grouped @ keys[:, columns].float().mT).view(-1, rows, columns.stop - columns.start)
    logits = capped(logits, softcap)
    if columns.stop > keys.shape[1] - rows + 1:
        logits.masked_fill_(hidden(rows, keys.shape[1], columns, keys.device), -torch.inf)
    return logits


def hidden(
    rows: int, tokens: int, columns: slice, device: torch.device, sliding_window: int | None = None
) -> Bool[Tensor, "queries columns"]:
    """Return the mask of the newest `rows` of `tokens` positions: True if a column is later or outside the window."""
    row = torch.arange(tokens - rows, tokens, device=device)[:, None]
    column = torch.arange(columns.start, columns.stop, device=device)
    return column > row if sliding_window is None else (column > row) | (column <= row - sliding_window)


def attend_segments(
    queries: Float[Tensor, "segments rows head_dim"],
    keys: Float[Tensor, "segments pairs head_dim"],
    values: Float[Tensor, "segments pairs head_dim"],
    hidden_tail: Bool[Tensor, "rows tail"] | None,
    scaling: float,
    hidden_prefix: Bool[Tensor, "rows prefix"] | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "segments rows"] | None = None,
    unread: Bool[Tensor, "segments rows pairs"] | None = None,
) -> Float[Tensor, "segments rows head_dim"]:
    """Return one softmax over all pairs of a segment; the masks hide some of its newest and of its oldest pairs, and
    those that a row does not read.

    The rows of a segment are the query heads of its group times the tokens being read.
    """
    logits = capped(torch.bmm(queries, keys.mT).mul_(scaling), softcap)
    if hidden_tail is not None:
        logits[..., keys.shape[1] - hidden_tail.shape[1] :].masked_fill_(hidden_tail, -torch.inf)
    if hidden_prefix is not None:
        logits[..., : hidden_prefix.shape[1]].masked_fill_(hidden_prefix, -torch.inf)
    if unread is not None:
        logits.masked_fill_(unread, -torch.inf)
    return over_pairs(softmax(logits, sinks).to(values.dtype), values)


def over_pairs(
    weights: Float[Tensor, "segments rows pairs"], values: Float[Tensor, "segments pairs head_dim"]
) -> Float[Tensor, "segments rows head_dim"]:
    """Return the weighted sum of the values of each segment. On a GPU the product of a few rows with a long segment
    would run on as many cores as there are segments: it is divided into parts, which are added in float32.
    """
    parts = values.shape[1] // PAIRS_OF_A_PART
    if not values.is_cuda or parts < 2:
        return torch.bmm(weights, values)
    divided = parts * PAIRS_OF_A_PART
    by_part = weights[..., :divided].unflatten(2, (parts, -1)).transpose(1, 2)
    sums = (by_part @ values[:, :divided].unflatten(1, (parts, -1))).sum(dim=1, dtype=torch.float32)
    return (sums + torch.bmm(weights[..., divided:], values[:, divided:])).to(values.dtype)


def strongest(
    queries: Float[Tensor, "heads queries head_dim"],
    keys: Float[Tensor, "kv_heads tokens head_dim"],
    columns: slice,
    rule: AttentionParams,
    softmax: bool = True,
    kernels: Kernels = "torch",
    norms: Float[Tensor, "queries"] | None = None,
) -> Float[Tensor, "heads columns"]:
    """Return the largest weight, or logit, that any of the newest rows gives each of `columns`, to which all of them
    attend.

    The softmax of a row runs over all of `keys`: of the prefix, of the chunk, and of the repetition up to the row;
    without `softmax` logits count. In float32, a block of rows at a time, or by a kernel of `column_sums`, which
    supports weights only. norms: what the weights of each row are divided by.
    """
    heads, rows, head_dim = queries.shape
    kv_heads, tokens, _ = keys.shape
    assert columns.stop <= tokens - rows
    blocks = list(zip(range(0, rows, ROW_BLOCK), queries.split(ROW_BLOCK, dim=1), strict=True))
    lse = None
    if softmax:
        first = tokens - rows
        parts = [log_sum_exp(block, keys[:, : first + start + block.shape[1]], rule) for start, block in blocks]
        lse = torch.cat(parts, dim=1) if norms is None else torch.cat(parts, dim=1) + norms.float().log()
    sums = column_sums_of(kernels)
    if sums is not None and lse is not None:
        by_term = sums(queries, keys, keys, queries, lse, rule.scaling, ("attn_max",), softcap=rule.softcap)
        return by_term["attn_max"][:, columns]
    chunk = keys[:, columns].float().mT
    best = torch.full((heads, chunk.shape[2]), -torch.inf, device=queries.device)
    for start, block in blocks:
        count = block.shape[1]
        grouped = (block.float() * rule.scaling).reshape(kv_heads, heads // kv_heads * count, head_dim)
        logits = capped((grouped @ chunk).view(heads, count, -1), rule.softcap)
        if lse is not None:
            logits = logits - lse[:, start : start + count, None]
        best = torch.maximum(best, logits.amax(dim=1))
    return best.exp() if softmax else best
