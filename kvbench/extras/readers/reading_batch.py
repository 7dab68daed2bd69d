"""Cells whose queries read a part of the pairs that they keep, as a reader chooses."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.cache.kv_cache import KVCache
from kvbench.models.decode.batch import BytesRead, EqualLengthSegments, RaggedBatch, RaggedLayer


class Chooses(Protocol):
    """The questions that a batch asks a reader (`kvbench.extras.readers.reader.SparseReader`)."""

    @property
    def dense_layers(self) -> int: ...

    @property
    def question(self) -> str: ...

    def read(self, queries: Any, keys: Any, prefix: int) -> Any:
        """Return the pairs that each query reads."""

    def index_numbers(self, held: int, head_dim: int, group: int) -> int:
        """Numbers that are read to choose."""
        ...


class CountingBatch(RaggedBatch):
    """A `RaggedBatch` that reads a part of its pairs, and counts the bytes."""

    uncaptured = "the host counts the pairs that a reader chooses"

    def __init__(self, caches: Iterable[KVCache], cells: int, max_new_tokens: int) -> None:
        super().__init__(caches, cells, max_new_tokens)
        self._bytes_read: dict[int, list[BytesRead]] = {}

    def _rows(self, state: RaggedLayer, run: EqualLengthSegments) -> list[int]:
        """Return the row of the batch that each segment of a run belongs to."""
        heads, places = state.segments // self.num_active, range(run.start, run.stop)
        segments = places if state.order is None else state.order[places.start : places.stop].tolist()
        return [segment // heads for segment in segments]

    def _count(self, state: RaggedLayer, run: EqualLengthSegments, pairs: list[int], index_bytes: int) -> None:
        """Add what the segments of a run read for the newest token."""
        read = self._bytes_read.setdefault(self.num_new_tokens, [BytesRead(0, 0)] * (max(self.order) + 1))
        for row, number in zip(self._rows(state, run), pairs, strict=True):
            cell = self.order[row]
            read[cell] = BytesRead(read[cell].pairs + number * state.pair_bytes, read[cell].index + index_bytes)

    def bytes_read(self, cell: int, first: int, tokens: int) -> BytesRead | None:
        """As counted."""
        if not tokens:
            return None
        read = [self._bytes_read[token][cell] for token in range(first, first + tokens)]
        return BytesRead(sum(each.pairs for each in read) / tokens, sum(each.index for each in read) / tokens)


class ReadingBatch(CountingBatch):
    """Cells of one reader, which masks the pairs that a query does not read.

    question_tokens: how many of the first tokens belong to a question, which `reader.question` is about. Tokens that
    are read together choose as if one were read after the other. Readers see numbers in float32 or wider.
    """

    def __init__(
        self, caches: Iterable[KVCache], cells: int, max_new_tokens: int, reader: Chooses, question_tokens: int = 0
    ) -> None:
        super().__init__(caches, cells, max_new_tokens)
        self.reader, self.question_tokens = reader, question_tokens

    def _unread(
        self,
        layer: int,
        state: RaggedLayer,
        run: EqualLengthSegments,
        rows: Float[Tensor, "segments rows head_dim"],
        keys: Float[Tensor, "segments pairs head_dim"],
        new: int,
        rule: AttentionParams,
    ) -> Bool[Tensor, "segments rows pairs"] | None:
        reader, num_pairs = self.reader, keys.shape[1]
        if self.num_new_tokens < self.question_tokens and reader.question == "dense":
            return None
        if state.sliding_window is not None:
            self._count(state, run, [min(num_pairs, state.sliding_window)] * len(rows), 0)
            return None
        if layer < reader.dense_layers:
            self._count(state, run, [num_pairs] * len(rows), 0)
            return None
        wide = torch.promote_types(rows.dtype, torch.float32)
        queries, wide_keys = rows.to(wide).unflatten(1, (-1, new)) * rule.scaling, keys.to(wide)
        is_read = queries.new_zeros(*queries.shape[:3], num_pairs).bool()
        for token in range(new):
            visible = num_pairs - new + token + 1
            is_read[:, :, token, :visible] = reader.read(queries[:, :, token], wide_keys[:, :visible], run.prefix)
        if new == 1:
            pairs: list[int] = is_read.any(dim=(1, 2)).sum(dim=1).tolist()
            index_bytes = reader.index_numbers(num_pairs, keys.shape[2], queries.shape[1]) * keys.itemsize
            self._count(state, run, pairs, index_bytes)
        return ~is_read.flatten(1, 2)
