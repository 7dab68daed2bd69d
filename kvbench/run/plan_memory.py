"""Memory that a plan tells before anything runs: the caches of a prompt's cells, and what chooses what they keep."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from kvbench.cache.attention import CHUNK_LOGITS, COLUMN_CHUNK, OBSERVED_ROWS
from kvbench.models.bridge import state_bytes
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import cache_heads, sliding_windows
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.cell import Cell
from kvbench.run.lengths import lengths_of
from kvbench.run.memory import (
    CANDIDATE_BYTES,
    HIDDEN_SIZES,
    activations,
    cell_bytes,
    count_rankings,
    observed_rows,
    text_and_dtype,
)
from kvbench.run.plan import PrefillGroup

MIB = 2**20


@dataclass(frozen=True)
class Memory:
    """Bytes that a prompt and its cells take, at most.

    full: the full cache of the prompt. cells: each cell of the largest decode batch, beside the full cache. recorded:
    queries that are observed, and sums over all queries. rankings: dropped where they do not fit. states: recurrent
    layers of the prompt, of each cell and of each row of a batch, padded to `model.max_batch` (a CPU may need some
    more). a_pass: activations of a pass over the prompt. reading: the cache of a cell that evicts block by block, which
    takes the place of the full cache.
    """

    full: int
    cells: tuple[int, ...]
    recorded: int
    rankings: int
    states: int
    a_pass: int
    reading: int | None = None

    @property
    def scoring(self) -> int:
        """Bytes that are recorded and ranked."""
        return self.recorded + self.rankings

    @property
    def total(self) -> int:
        """While the cells are decoded."""
        caches = self.full + sum(self.cells) if self.reading is None else max(self.reading, *self.cells)
        return caches + self.scoring + self.states

    @property
    def peak(self) -> int:
        """The most at a time, beside the weights: while the prompt is read, or while the cells are decoded."""
        caches, ranked = (self.full, 0) if self.reading is None else (self.reading, self.rankings)
        return max(caches + ranked + self.recorded + self.states + self.a_pass, self.total)


def memory_of(group: PrefillGroup, at_once: int = Engine.prefill_chunk) -> Memory | None:
    """Return the bytes of the caches of a prompt: of the longest one, where texts have their own lengths.

    at_once: tokens of a pass. None for texts, whose caches never hold everything, and for timed batches.
    """
    lengths = lengths_of(group)
    if lengths is None:
        return None
    tokens, max_new_tokens = lengths.read, lengths.later
    full, heads, group_size = full_bytes(group.model, tokens)
    sizes = (cell_bytes(cell, tokens, max_new_tokens, full // tokens, group_size) for cell in group.cells)
    block, reading = group.cells[0].schedule.block_of(tokens), None
    if block is not None:
        (cell,) = group.cells
        held_pairs = min(tokens, cell.policy.resolve(0, tokens, cell.budget).pairs(cell.budget, tokens) + block)
        copies = group_size if cell.policy.layout == "query_heads" else 1
        reading, scoring = copies * held_pairs * full // tokens, (0, copies * held_pairs * heads * CANDIDATE_BYTES)
    else:
        scoring = scoring_bytes(group.cells, tokens, full, heads, group_size)
    largest = tuple(sorted(sizes, reverse=True)[: group.model.max_batch])
    states = (1 + len(largest) + group.model.max_batch) * state_bytes_of(group.model)
    a_pass = pass_bytes(group.cells, tokens, min(tokens, block or at_once))
    return Memory(full, largest, *scoring, states, a_pass, reading)


def pass_bytes(cells: Sequence[Cell], tokens: int, at_once: int) -> int:
    """Return bytes that a pass over `at_once` tokens of a prompt holds beside what stays: its activations, or a part of
    them with the logits of the observed queries over a chunk of keys.
    """
    text, dtype = text_and_dtype(cells[0].model)
    (kv_heads, head_dim), heads = cache_heads(text), text.num_attention_heads
    recorded = [observed_rows(cell, 0, tokens) for cell in cells] if cells[0].schedule.prefill_block is None else []
    summed, width = any(each for _, each in recorded), max(text.hidden_size, heads * head_dim)
    rows = min(at_once, OBSERVED_ROWS, max((tokens if summed else 0, *(max(rows, default=0) for rows, _ in recorded))))
    columns = min(tokens, max(COLUMN_CHUNK, CHUNK_LOGITS // max(1, heads * rows)))
    observing = HIDDEN_SIZES * width * at_once * dtype.itemsize + 4 * heads * rows * (columns + head_dim)
    if summed and at_once < tokens:  # a score reads keys and values of a layer so far
        observing += 2 * kv_heads * head_dim * tokens * dtype.itemsize
    return max(activations(text, dtype, at_once), observing if rows else 0)


def scoring_bytes(cells: Sequence[Cell], tokens: int, full: int, heads: int, group_size: int) -> tuple[int, int]:
    """Return bytes of the queries that are observed for the cells of a prompt, with their outputs and log-sum-exp, and
    of scores over all queries; and of the rankings. full, heads, group_size: as `full_bytes` returns them.
    """
    recorded = [observed_rows(cell, 0, tokens) for cell in cells]
    rows = sum(set[int]().union(*(rows for rows, _ in recorded)))
    over_all = {each for _, each in recorded} | {cell.score.inputs.repeat for cell in cells}
    sums = 4 * heads * tokens * len(over_all - {None})
    count, ranking_bytes = count_rankings(cells, tokens, heads, group_size)
    return group_size * (rows * (full // tokens + 4 * heads) + sums), count * ranking_bytes


def memory_text(group: PrefillGroup) -> str | None:
    """Describe the memory of a plan, if it is known."""
    memory = memory_of(group)
    if memory is None:
        return None
    cells = "the cell" if len(group.cells) == 1 else f"the {len(memory.cells)} largest cells, decoded together,"
    cache = f"the full cache at most {memory.full / MIB:.1f} MiB"
    if memory.reading is not None:
        held = f"a cache that is evicted from block by block at most {memory.reading / MIB:.1f} MiB"
        cache = f"{held} (a full one: {memory.full / MIB:.1f} MiB)"
    sizes = f"{cache}; {cells} at most {sum(memory.cells) / MIB:.1f} MiB"
    if memory.scoring:
        sizes += f"; observed queries and rankings at most {memory.scoring / MIB:.1f} MiB"
    if memory.states:
        sizes += f"; states of recurrent layers {memory.states / MIB:.1f} MiB"
    if (hidden := hidden_bytes(group)) is not None:
        held, computed = (number / MIB for number in hidden)
        sizes += f"; hidden states {held:.1f} MiB, computed from them by scores at most {computed:.1f} MiB"
    whole = memory_of(group, sys.maxsize)
    assert whole is not None
    at_once = f" ({whole.peak / MIB:.1f} MiB read in one pass)" if whole.peak > memory.peak else ""
    return f"memory: {sizes}; at its peak {memory.peak / MIB:.1f} MiB beside the weights{at_once}"


def hidden_bytes(group: PrefillGroup) -> tuple[int, int] | None:
    """Return bytes of the hidden states that are held for scores at a time, of one layer and pass, and at most of what
    all scores make of the prompt's. None if no score asks for them. A score that reads the module gets a copy.
    """
    reading = (cell.score for cell in group.cells if cell.score.inputs.hidden_states)
    scores = {part for score in reading for part in score.recorded}
    if not scores or (lengths := lengths_of(group)) is None:
        return None
    tokens = lengths.read
    text, dtype = text_and_dtype(group.model)
    at_once = any(score.inputs.hidden_states == "prompt" for score in scores)
    held = (tokens if at_once else min(tokens, Engine.prefill_chunk)) * text.hidden_size * dtype.itemsize
    held *= 1 + any(score.inputs.module for score in scores)
    return held, len(scores) * text.num_hidden_layers * text.num_attention_heads * tokens * torch.float32.itemsize


def unshared_text(groups: Iterable[PrefillGroup]) -> str | None:
    """Say what it costs that some cells share no prefill, because they evict during it; None if there are none."""
    tokens = defaultdict[tuple[str, str], list[int]](list)
    for group in groups:
        if group.cells[0].schedule.prefill_block is not None and not group.task.scores_text:
            length = len(group.jobs) * (group.task.context_length or 0)
            tokens[group.model.label, repr(group.task)].append(length)
    if not tokens:
        return None
    total, once = sum(map(sum, tokens.values())), sum(map(max, tokens.values()))
    reason = f"{sum(map(len, tokens.values()))} cells evict during the prefill, so each reads its own prompts"
    return (
        f"{reason}: they read at most {total} tokens in all; with a shared prefill it would be {once}"
        if total
        else reason
    )


@lru_cache
def full_bytes(spec: ModelSpec, tokens: int) -> tuple[int, int, int]:
    """Return bytes of a cache of all tokens, without those outside a layer's sliding window; KV heads of all layers;
    query heads per KV head.
    """
    text, dtype = text_and_dtype(spec)
    heads, (kv_heads, head_dim) = text.num_attention_heads, cache_heads(text)
    windows = sliding_windows(text).values()
    held = sum(tokens if window is None else min(window, tokens) for window in windows)
    return held * kv_heads * 2 * head_dim * dtype.itemsize, len(windows) * kv_heads, math.ceil(heads / kv_heads)


@lru_cache
def state_bytes_of(spec: ModelSpec) -> int:
    """Return bytes of the states of a sequence in layers without keys."""
    return state_bytes(*text_and_dtype(spec))
