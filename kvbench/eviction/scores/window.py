"""Attention of the observation window over a dense layer: the shared arithmetic of all scores that read it.

Rows are the observed queries, columns the cached tokens. With A the attention weights, Z the scaled logits and o the
output of a row, v the value of a column, every score needs only Z = q.k, u = o.v and one constant per row or column. No
array of queries x tokens x head_dim is built. Rows are handled in blocks and columns in chunks, so that memory stays
small even if all queries of the prompt are observed. All arithmetic is float32.

If the model soft-caps its logits, Z is the capped logit. A learned sink takes part in the softmax but is no column: the
weights of a row then sum to less than 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import starmap

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.attention import ROW_BLOCK, logits_by_chunk
from kvbench.cache.kernels.choice import column_sums_of
from kvbench.cache.kernels.column_sums import Term
from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Dense, Rows, Scores
from kvbench.support.errors import UserError

Weights = Float[Tensor, "heads queries columns"]
Columns = Float[Tensor, "heads columns"]


@dataclass(frozen=True)
class Chunk:
    """The attention of a block of observed rows over a run of columns.

    `logits` and `weights` are 0 where the causal mask, `hidden`, is True. `start` is the first column; row r of the
    block is the query of column `row + r`.
    """

    start: int
    row: int
    weights: Weights
    logits: Weights
    hidden: Bool[Tensor, "heads queries columns"]
    values: Float[Tensor, "kv_heads columns head_dim"]
    outputs: Float[Tensor, "heads queries head_dim"]
    lse: Float[Tensor, "heads queries 1"]
    centre: Float[Tensor, "kv_heads 1 head_dim"]

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.weights.shape[0] // self.values.shape[0]

    @cached_property
    def diagonal(self) -> Bool[Tensor, "queries columns"]:
        """Where the column is the token of the row itself."""
        device, (_, rows, columns) = self.weights.device, self.weights.shape
        places = torch.arange(self.start, self.start + columns, device=device)
        return torch.arange(self.row, self.row + rows, device=device)[:, None] == places

    @property
    def rest(self) -> Weights:
        """1 - A, resolved where A is close to 1: the weight that a row gives to all other columns."""
        return (self.logits - self.lse).clamp_max_(0).expm1_().masked_fill_(self.hidden, -1).neg_()

    @cached_property
    def value_norms(self) -> Float[Tensor, "heads 1 columns"]:
        """|v|^2 of each column."""
        return self._by_head(self.values.square().sum(-1))[:, None]

    @property
    def distances(self) -> Weights:
        """|v - o|^2, at least 0.

        v - o does not change when both are moved, so a common centre is taken off first: without it the expanded
        square is a small difference of large numbers, and rounding takes it below 0. Where a row gives a column most of
        its weight o comes close to v; the difference is then taken directly.
        """
        v2, o2, products = self._products
        squares = (v2 + o2).sub_(products, alpha=2).clamp_min_(0)
        if self.weights.device.type != "cpu":  # at most one column of a row has such a weight: no list of them is read
            largest, columns = self.weights.max(dim=-1, keepdim=True)
            by_kv_head = columns.view(len(self.values), -1, 1).expand(-1, -1, self.values.shape[-1])
            near = self.values.gather(1, by_kv_head).view(self.outputs.shape) - self.outputs
            exact = torch.where(largest > 0.5, near.square().sum(-1, keepdim=True), squares.gather(-1, columns))
            return squares.scatter_(-1, columns, exact)
        heads, rows, columns = (self.weights > 0.5).nonzero(as_tuple=True)
        near = self.values[heads // self.group, columns] - self.outputs[heads, rows]
        return squares.index_put_((heads, rows, columns), near.square().sum(-1))

    @property
    def projections(self) -> Weights:
        """v . (v - o), from the moved vectors v' = v - c and o' = o - c: (v' + c) . (v' - o')."""
        (v2, _, products), (along_v, along_o) = self._products, self._along_centre
        return v2 - products + along_v - along_o

    @property
    def leanings(self) -> Weights:
        """o . (v - o), from the moved vectors: (o' + c) . (v' - o')."""
        (_, o2, products), (along_v, along_o) = self._products, self._along_centre
        return products - o2 + along_v - along_o

    @cached_property
    def _moved(self) -> tuple[Float[Tensor, "kv_heads columns head_dim"], Float[Tensor, "heads queries head_dim"]]:
        return self.values - self.centre, self.outputs - self._by_head(self.centre)

    @cached_property
    def _products(self) -> tuple[Float[Tensor, "heads 1 columns"], Float[Tensor, "heads queries 1"], Weights]:
        """|v'|^2, |o'|^2 and v' . o'."""
        values, outputs = self._moved
        grouped = outputs.unflatten(0, (len(values), -1)).flatten(1, 2)
        products = (grouped @ values.mT).view(*outputs.shape[:2], -1)
        return self._by_head(values.square().sum(-1))[:, None], outputs.square().sum(-1)[..., None], products

    @cached_property
    def _along_centre(self) -> tuple[Float[Tensor, "heads 1 columns"], Float[Tensor, "heads queries 1"]]:
        """v' . c and o' . c."""
        values, outputs = self._moved
        along_v = self._by_head((values * self.centre).sum(-1))[:, None]
        return along_v, (outputs * self._by_head(self.centre)).sum(-1)[..., None]

    def _by_head(self, numbers: Float[Tensor, "kv_heads *rest"]) -> Float[Tensor, "heads *rest"]:
        """Return numbers of KV heads for each query head."""
        return numbers.repeat_interleave(self.group, dim=0)


def blocks(layer: LayerCache, window: ObservationWindow) -> Iterator[tuple[ObservationWindow, int]]:
    """Yield the observed rows in blocks of at most `ROW_BLOCK`, each with the number of columns that it attends to."""
    tokens, observed = layer.lengths[0], window.queries.shape[1]
    for start in range(0, observed, ROW_BLOCK):
        stop = min(start + ROW_BLOCK, observed)
        yield window.part(start, stop), tokens - observed + stop


def chunks(layer: LayerCache, window: ObservationWindow, tokens: int) -> Iterator[Chunk]:
    """Return the attention of a window, the newest of the first `tokens` tokens, over these tokens; none is held while
    the next is made.
    """
    keys, values = layer.dense
    outputs = window.outputs.float()
    kv_heads = keys.shape[0]
    centre = outputs.reshape(kv_heads, -1, outputs.shape[-1]).mean(dim=1, keepdim=True)
    chunk = partial(_chunk, tokens - window.lse.shape[1], values, outputs, window, centre)
    return starmap(chunk, logits_by_chunk(window.queries, keys[:, :tokens], window.scaling, window.softcap))


def _chunk(
    row: int,
    values: Dense,
    outputs: Rows,
    window: ObservationWindow,
    centre: Float[Tensor, "kv_heads 1 head_dim"],
    columns: slice,
    logits: Weights,
) -> Chunk:
    if window.unread is not None:
        logits.masked_fill_(window.unread[..., columns], -torch.inf)
    lse, hidden = window.lse[..., None], logits == -torch.inf
    weights = (logits - lse).exp_()
    logits = logits.masked_fill_(hidden, 0)
    return Chunk(columns.start, row, weights, logits, hidden, values[:, columns].float(), outputs, lse, centre)


def over_columns(
    layer: LayerCache,
    window: ObservationWindow,
    term: Callable[[Chunk], Columns],
    merge: Callable[[Columns, Columns], Columns] = torch.add,
    named: Term | None = None,
    diagonal: bool = True,
) -> Scores:
    """Evaluate `term` on every chunk of a block of rows, join the chunks along the tokens, and `merge` the blocks.

    A column that no row of a block attends to counts as 0 there. If `model.kernels` has a kernel for the equal sum
    `named`, that is called instead; `diagonal` tells it whether the weight that a row gives itself counts.
    """
    fast = None if named is None else fused_sums(layer, window, (named,), diagonal)
    if named is not None and fast is not None:
        return fast[named]
    total = window.lse.new_zeros(window.lse.shape[0], layer.lengths[0])
    for block, num_tokens in blocks(layer, window):
        part = torch.cat(list(map(term, chunks(layer, block, num_tokens))), dim=1)
        total[:, :num_tokens] = merge(total[:, :num_tokens], part)
    return total


def fused_sums(
    layer: LayerCache, window: ObservationWindow, terms: Sequence[Term], diagonal: bool = True
) -> dict[Term, Scores] | None:
    """Return these sums in one pass of the kernel that `model.kernels` chose; None for plain PyTorch.

    Raises UserError for sums that the kernel does not support.
    """
    sums = column_sums_of(window.kernels)
    if sums is None:
        return None
    arrays = (window.queries, *layer.dense, window.outputs, window.lse)
    return sums(*arrays, window.scaling, terms, softcap=window.softcap, diagonal=diagonal)


def moments(layer: LayerCache, window: ObservationWindow) -> tuple[Scores, Scores]:
    """Mean and unbiased variance of the attention weight of each column over the observed rows, [heads, tokens] each.

    Blocks are joined by the pairwise rule of Chan, Golub and LeVeque (1979), which does not cancel. Raises UserError
    for a single row, whose variance is undefined.
    """
    observed = window.lse.shape[1]
    if observed < 2:
        raise UserError(f"policy.window={observed}: a variance over the observed rows needs two of them")
    fast = fused_sums(layer, window, ("attn", "attn_variance"))
    if fast is not None:
        return fast["attn"] / observed, fast["attn_variance"]
    mean = window.lse.new_zeros(window.lse.shape[0], layer.lengths[0])
    squares, counted = torch.zeros_like(mean), 0
    for block, num_tokens in blocks(layer, window):
        count = block.lse.shape[1]
        by_chunk = chunks(layer, block, num_tokens)
        parts = list(map(lambda chunk: torch.var_mean(chunk.weights, dim=1, correction=0), by_chunk))
        block_mean, block_squares = torch.zeros_like(mean), torch.zeros_like(mean)
        block_mean[:, :num_tokens] = torch.cat([part[1] for part in parts], dim=1)
        block_squares[:, :num_tokens] = torch.cat([part[0] for part in parts], dim=1) * count
        gap, together = block_mean - mean, counted + count
        mean = mean + gap * (count / together)
        squares = squares + block_squares + gap.square() * (counted * count / together)
        counted = together
    return mean, squares / (observed - 1)


def resolved(layer: LayerCache, window: ObservationWindow) -> ObservationWindow:
    """Return a window with outputs in float32 or wider: a half precision model's are computed again from the cache.

    Where a weight is close to 1, v - o is a small difference that the rounding of a half precision output would hide.
    Keys and values are read twice, since an output needs all columns, and each column's score the outputs of all rows.
    """
    if window.outputs.dtype.itemsize >= 4:
        return window
    outputs = torch.zeros(window.outputs.shape, dtype=torch.float32, device=window.outputs.device)
    start = 0
    for block, num_tokens in blocks(layer, window):
        stop = start + block.lse.shape[1]
        for chunk in chunks(layer, block, num_tokens):
            heads, count, _ = chunk.weights.shape
            grouped = chunk.weights.reshape(chunk.values.shape[0], chunk.group * count, -1)
            outputs[:, start:stop] += (grouped @ chunk.values).view(heads, count, -1)
        start = stop
    return replace(window, outputs=outputs)


@dataclass(frozen=True)
class Furthest:
    """An upper bound of the squared change of an output when one KV pair is removed, as a function of a chunk:
    (|v_j| + largest norm of a value of the KV head)^2 of each column.

    With a the weight of the pair, the outputs with and without it are o and (o - a v) / (1 - a). For a close to 1 that
    is a quotient of two differences that float32 does not resolve, and for a = 1 nothing is left to attend to. The
    exact scores take this bound there, so that such a pair ranks highest.
    """

    layer: LayerCache

    @cached_property
    def largest(self) -> Float[Tensor, "kv_heads"]:
        """The largest norm of a value of each KV head."""
        values = self.layer.dense[1]
        dtype = torch.promote_types(values.dtype, torch.float32)
        return torch.linalg.vector_norm(values, dim=-1, dtype=dtype).amax(dim=1)

    def __call__(self, chunk: Chunk) -> Float[Tensor, "heads 1 columns"]:
        return (chunk.value_norms.sqrt() + self.largest.repeat_interleave(chunk.group)[:, None, None]).square()
