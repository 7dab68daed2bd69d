"""Memory: what cells will hold, how many fit at the same time, and what happens when memory runs out.

Cells are never dropped: cells of a decode batch that do not fit together are decoded one part after the other. Every
part is padded to the rows of a full batch, whose missing cells hold nothing, so that a split changes no bit of a row.
"""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch

from kvbench.eviction.evict import ranks_alike, reads_rows
from kvbench.eviction.policy import ASSUMED_QUESTION, Layout
from kvbench.models.bridge import state_bytes
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import cache_heads, plain_config, sliding_windows, text_config
from kvbench.models.loading.load import config_of
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.lengths import lengths_of
from kvbench.run.plan import Cell, PrefillGroup

SHARE = 0.9
"""Share of the free memory that cells are planned into; the rest is for what passes hold meanwhile."""
RANKED = 24
"""Bytes of a candidate of a cache head in a ranking: two scores in four bytes each, and its places in two orders."""
RANKINGS = 0.25
"""Share of the free memory for rankings, which cells with another budget use again; the oldest are dropped."""
EXHAUSTED = re.compile(r"out of memory|ALLOC(ATION)?_FAILED|DefaultCPUAllocator: (can't allocate|not enough) memory")
"""What torch's allocators, CUDA, Triton, cuBLAS and cuDNN say when memory has run out, in several RuntimeErrors."""
MIB = 2**20

T = TypeVar("T")


def cell_bytes(cell: Cell, tokens: int, max_new_tokens: int, pair_bytes: int, group: int) -> int:
    """Bytes that a cell takes beside the full cache of `tokens` tokens while it decodes.

    pair_bytes: of a token in every cache head of every layer. group: query heads per KV head.
    """
    policy = cell.policy.resolve(0, tokens, cell.budget)  # the head of a prompt is short
    kept = min(policy.pairs(cell.budget, tokens), tokens)
    copies = group if cell.policy.layout == "query_heads" else 1
    return cell.held.cell_bytes(copies * kept, copies * max_new_tokens, pair_bytes)


def observed_rows(cell: Cell, head: int, tokens: int, question: int = ASSUMED_QUESTION, tail: int = 0) -> set[int]:
    """Return how many of the newest queries are recorded for a cell of a prompt of `tokens`, of which `head` come
    first, `question` from the question on and `tail` behind the user's text.
    """
    scores, applies = reads_rows(cell.policy, cell.score), bool(cell.policy.reading_steps)
    if not (scores or applies):
        return set()
    policy = cell.policy.resolve(head, tokens, cell.budget, question or ASSUMED_QUESTION, tail)
    applied = {policy.step_rows(tokens - policy.skipped) + policy.skipped} if applies else set[int]()
    return (policy.recorded(tokens) if scores else set[int]()) | applied


def rankings_of(cells: Iterable[Cell], tokens: int, heads: int, group: int) -> tuple[int, int]:
    """Return how many rankings the cells of a prompt have among them, and the bytes of the largest.

    heads: KV heads of all layers. group: query heads per KV head.
    """
    policies = ((cell.policy.resolve(0, tokens, cell.budget), cell) for cell in cells)
    ranked = [(policy, cell.score) for policy, cell in policies if not policy.keeps_all(cell.budget, tokens)]
    copies = max((group if policy.layout == "query_heads" else 1 for policy, _ in ranked), default=1)
    return len({(ranks_alike(policy, score), score) for policy, score in ranked}), copies * heads * tokens * RANKED


def free_bytes(devices: Iterable[torch.device]) -> int:
    """Bytes that layers on these devices can still allocate together, including those that torch has reserved.

    Layers take as much each, so the device with the least room for each of its own limits all of them.
    """

    def free(device: torch.device) -> int:
        if device.type != "cuda":
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return (
            torch.cuda.mem_get_info(device)[0]
            + torch.cuda.memory_reserved(device)
            - torch.cuda.memory_allocated(device)
        )

    layers = Counter(devices)
    return min(free(device) * layers.total() // count for device, count in layers.items())


def split_to_fit(cells: Sequence[T], bytes_of: Callable[[T], int], free: int, most: int) -> Iterator[list[T]]:
    """Cells in order, as many at a time as should fit into `free` bytes: at most `most`, at least one."""
    part: list[T] = []
    for cell in cells:
        if part and (len(part) == most or sum(map(bytes_of, part)) + bytes_of(cell) > SHARE * free):
            yield part
            part = []
        part.append(cell)
    if part:
        yield part


def out_of_memory(error: Exception) -> bool:
    """Return whether an exception says that memory has run out."""
    says_so = isinstance(error, RuntimeError) and EXHAUSTED.search(str(error)) is not None
    return says_so or isinstance(error, torch.OutOfMemoryError)


def catch_oom(work: Callable[[], T], engine: Engine | None = None) -> T | str:
    """Return what the work returns; if memory runs out, the first line of what torch says. Other exceptions pass.

    engine: whose rooms are given up then; the work is done again if it has any.
    """
    try:
        return work()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        reason = f"out of memory: {str(error).strip().splitlines()[0]}"
    # outside the handler: the exception no longer holds the frames, and what they allocated
    again = engine is not None and engine.rooms is not None and engine.rooms.free()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return catch_oom(work) if again else reason


def free_beside(engine: Engine, devices: Iterable[torch.device]) -> int:
    """Return `free_bytes`, with what decode batches will take again or give up."""
    return free_bytes(devices) + (0 if engine.rooms is None else engine.rooms.bytes_held)


def most_together(engine: Engine) -> int:
    """Return cells of a decode batch, no more than did fit when memory ran out before."""
    return min(engine.max_batch, engine.counters.max_cells or engine.max_batch)


def halve_on_oom(
    cells: list[T], work: Callable[[list[T]], None], fail: Callable[[T, str], None], engine: Engine
) -> None:
    """Do the work for all cells together; when memory runs out, for each half. A cell that does not fit alone fails."""
    waiting, together = [cells], 1
    while waiting:
        part = waiting.pop(0)
        reason = catch_oom(partial(work, part), engine)
        if reason is None:
            together = max(together, len(part))
        elif len(part) == 1:
            fail(part[0], reason)
        else:
            middle = (len(part) + 1) // 2
            waiting[:0] = part[:middle], part[middle:]
    if together < len(cells):
        engine.counters.oom_splits += 1
        engine.counters.max_cells = together


@dataclass(frozen=True)
class Memory:
    """Bytes of the full cache of a prompt, of the cells of the largest decode batch beside it, and of what is recorded
    and ranked to choose what they keep: at most, since rankings are dropped where they do not fit. states: of recurrent
    layers, of the prompt, of each cell, and of each row of a batch, padded to `model.max_batch` (a CPU may need
    some more). reading: where the cell evicts block by block, what its cache holds at most meanwhile, instead of the
    full one.
    """

    full: int
    cells: tuple[int, ...]
    scoring: int
    states: int
    reading: int | None = None

    @property
    def total(self) -> int:
        caches = self.full + sum(self.cells) if self.reading is None else max(self.reading, *self.cells)
        return caches + self.scoring + self.states


def memory_of(group: PrefillGroup) -> Memory | None:
    """Return the bytes of the caches of a prompt: of the longest one, where texts have their own lengths.

    None for texts, whose caches never hold everything, and for timed batches.
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
        reading, scoring = copies * held_pairs * full // tokens, copies * held_pairs * heads * RANKED
    else:
        scoring = scoring_bytes(group.cells, tokens, full, heads, group_size)
    largest = tuple(sorted(sizes, reverse=True)[: group.model.max_batch])
    states = (1 + len(largest) + group.model.max_batch) * state_bytes_of(group.model)
    return Memory(full, largest, scoring, states, reading)


def scoring_bytes(cells: Sequence[Cell], tokens: int, full: int, heads: int, group_size: int) -> int:
    """Return bytes of the queries that are observed for the cells of a prompt, with their outputs and log-sum-exp, and
    of the rankings. full, heads, group_size: as `full_bytes` returns them.
    """
    rows = sum(set[int]().union(*(observed_rows(cell, 0, tokens) for cell in cells)))
    count, ranking_bytes = rankings_of(cells, tokens, heads, group_size)
    return rows * group_size * (full // tokens + 4 * heads) + count * ranking_bytes


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
    return f"memory: {sizes}; plus weights and activations"


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


def token_bytes(spec: ModelSpec, layout: Layout) -> int:
    """Return bytes of the KV pairs of a token, as `bytes_of_token`."""
    return bytes_of_token(*text_and_dtype(spec), layout)


def bytes_of_token(config: Any, dtype: torch.dtype, layout: Layout) -> int:
    """Return bytes of the KV pairs of a token in all cache heads of the layers that are evicted from: those without a
    sliding window, or all layers if each has one.

    config: of transformers. dtype: of the cache.
    """
    text = text_config(config)
    kv_heads, head_dim = cache_heads(text)
    windows = sliding_windows(text).values()
    layers = sum(window is None for window in windows) or len(windows)
    heads = text.num_attention_heads if layout == "query_heads" else kv_heads
    return layers * heads * 2 * head_dim * dtype.itemsize


@lru_cache
def state_bytes_of(spec: ModelSpec) -> int:
    """Return bytes of the states of a sequence in layers without keys."""
    return state_bytes(*text_and_dtype(spec))


@lru_cache
def text_and_dtype(spec: ModelSpec) -> tuple[Any, torch.dtype]:
    """Return the configuration of a model's text part, and the dtype of its cache."""
    config = (None if spec.shape else plain_config(spec.folder())) or config_of(spec)
    dtype = getattr(torch, spec.dtype) if spec.dtype != "auto" else getattr(config, "dtype", None) or torch.float32
    return text_config(config), dtype
