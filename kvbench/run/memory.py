"""Memory: what cells will hold, how many fit at the same time, and what happens when memory runs out.

Cells are never dropped: cells of a decode batch that do not fit together are decoded one part after the other. Every
part is padded to the rows of a full batch, whose missing cells hold nothing, so that a split changes no bit of a row.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch

from kvbench.eviction.evict import ranks_alike, reads_rows
from kvbench.eviction.policy import ASSUMED_QUESTION, Layout, Policy
from kvbench.eviction.scores.score import Score, Summed, row_term_of
from kvbench.models.decode.holder import Holder
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import cache_heads, plain_config, sliding_windows, text_config
from kvbench.models.loading.load import config_of
from kvbench.models.loading.spec import ModelSpec
from kvbench.run.cell import Cell
from kvbench.support.errors import out_of_memory
from kvbench.support.shared_gpus import processes_of_gpu

FREE_SHARE = 0.9
"""Share of the free memory that cells are planned into; the rest is for what passes hold meanwhile."""
CANDIDATE_BYTES = 20
"""Bytes of a candidate of a cache head in a ranking: two scores and its place in its head in four bytes each, and its
number in the order of the layer in eight.
"""
RANKINGS_SHARE = 0.25
"""Share of the free memory for rankings, which cells with another budget use again; the oldest are dropped."""

HIDDEN_SIZES, INNER_SIZES = 5, 3
"""Numbers that a pass holds for each token, in hidden and intermediate sizes: Llama and Qwen2 hold 4.1 to 4.5 and 3."""
UNSUMMED = (None, "exact_removal", "exact_zeroed")
"""`Score.row_term` of scores that are not summed while a prompt is read: they have none, or need all of its values."""

T = TypeVar("T")


def cell_bytes(cell: Cell, tokens: int, max_new_tokens: int, pair_bytes: int, group_size: int) -> int:
    """Bytes that a cell takes beside the full cache of `tokens` tokens while it decodes.

    pair_bytes: of a token in every cache head of every layer. group_size: query heads per KV head.
    """
    policy = cell.policy.resolve(0, tokens, cell.budget)  # the head of a prompt is short
    kept = min(policy.pairs(cell.budget, tokens), tokens)
    copies = group_size if cell.policy.layout == "query_heads" else 1
    held = cell.held.cell_bytes(copies * kept, copies * max_new_tokens, pair_bytes)
    return held - copies * kept * pair_bytes if is_copied_later(cell) else held


def is_copied_later(cell: Cell) -> bool:
    """Return whether a decode batch alone reads, and copies, what the cell keeps as it lies in the full cache."""
    once = cell.schedule.decode_every is cell.schedule.prefill_block is None
    own = type(cell.held).hold is not Holder.hold or type(cell.held).batch is not Holder.batch
    return once and not (own or cell.policy.steps)


def observed_rows(
    cell: Cell, prefix_tokens: int, tokens: int, question_tokens: int = ASSUMED_QUESTION, suffix_tokens: int = 0
) -> tuple[set[int], Summed | None]:
    """Return how many of the newest queries are recorded for a cell of a prompt of `tokens`; and the raw scores that
    are summed over all queries instead, while the prompt is read.

    The other numbers are as of `kvbench.models.prompts.prompt.Prompt`.
    """
    scores, applies = reads_rows(cell.policy, cell.score), bool(cell.policy.reading_steps)
    if not (scores or applies):
        return set(), None
    question = question_tokens or ASSUMED_QUESTION
    policy = cell.policy.resolve(prefix_tokens, tokens, cell.budget, question, suffix_tokens)
    applied = {policy.step_rows(tokens - policy.skipped) + policy.skipped} if applies else set[int]()
    if cell.schedule.decode_every is None and not policy.layers.reads_rows and sums_rows(policy, cell.score):
        evicts = policy.layers.official_divides_all or not policy.keeps_all(cell.budget, tokens)
        return applied, (cell.score, policy.reduce, policy.skipped) if evicts else None
    return (policy.recorded(tokens) if scores else set[int]()) | applied, None


def sums_rows(policy: Policy, score: Score) -> bool:
    """Return whether raw scores are merged over all queries, none of which needs a later key or value."""
    merges = row_term_of(score) not in UNSUMMED and score.over_rows(policy.reduce) is not None
    return policy.window == "all" and merges


def count_rankings(cells: Iterable[Cell], tokens: int, heads: int, group_size: int) -> tuple[int, int]:
    """Return how many rankings the cells of a prompt have among them, and the bytes of the largest.

    heads: KV heads of all layers. group_size: query heads per KV head.
    """
    policies = ((cell.policy.resolve(0, tokens, cell.budget), cell) for cell in cells)
    ranked = [(policy, cell.score) for policy, cell in policies if not policy.keeps_all(cell.budget, tokens)]
    copies = max((group_size if policy.layout == "query_heads" else 1 for policy, _ in ranked), default=1)
    distinct = {(ranks_alike(policy, score), score) for policy, score in ranked}
    return len(distinct), copies * heads * tokens * CANDIDATE_BYTES


def free_bytes(devices: Iterable[torch.device]) -> int:
    """Bytes that layers on these devices can still allocate together, including those that torch has reserved: of a GPU
    that several processes share, an equal part.

    Layers take as much each, so the device with the least room for each of its own limits all of them.
    """

    def free(device: torch.device) -> int:
        if device.type != "cuda":
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        (left, total), reserved = torch.cuda.mem_get_info(device), torch.cuda.memory_reserved(device)
        return min(left, total // processes_of_gpu() - reserved) + reserved - torch.cuda.memory_allocated(device)

    layers = Counter(devices)
    return min(free(device) * layers.total() // count for device, count in layers.items())


def reads_at_once(engine: Engine, tokens: int, rows: int, sums: int) -> bool:
    """Return whether a GPU should read a prompt in one pass: caches, `rows` observed queries, `sums` over all of them
    and the pass fit into what was free before the first prompt, so that later prompts are read alike.
    """
    if not engine.gpus or tokens <= engine.prefill_chunk:
        return False
    engine.counters.room = engine.counters.room or free_bytes(engine.gpus)
    config, dtype = engine.model.config, engine.model.dtype
    pair, of_queries = (bytes_of_token(config, dtype, layout) for layout in ("kv_heads", "query_heads"))
    layers = of_queries // (2 * cache_heads(text_config(config))[1] * dtype.itemsize)  # times query heads
    caches = tokens * pair + rows * (of_queries + 4 * layers) + sums * tokens * 4 * layers
    passes = len(engine.gpus) * activations(text_config(config), dtype, tokens)
    return caches + passes <= FREE_SHARE * engine.counters.room


def split_to_fit(cells: Sequence[T], bytes_of: Callable[[T], int], free: int, most_cells: int) -> list[list[T]]:
    """Return cells in order, as many at a time as should fit into `free` bytes: at most `most_cells`, at least one.

    Parts are of one size, but for the last, where no more of them are needed then: one room serves them all.
    """
    parts: list[list[T]] = []

    def fits(part: Sequence[T]) -> bool:
        return len(part) == 1 or (len(part) <= most_cells and sum(map(bytes_of, part)) <= FREE_SHARE * free)

    for cell in cells:
        if not parts or not fits([*parts[-1], cell]):
            parts.append([])
        parts[-1].append(cell)
    size = -(-len(cells) // max(1, len(parts)))
    even = [list(cells[start : start + size]) for start in range(0, len(cells), max(1, size))]
    return even if all(map(fits, even)) else parts


def catch_oom(work: Callable[[], T], engine: Engine | None = None) -> T | str:
    """Return what the work returns; if memory runs out, the first line of what torch says. Other exceptions pass.

    engine: what its decoding holds is given up then; the work is done again if that was anything.
    """
    try:
        return work()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        reason = f"out of memory: {str(error).strip().splitlines()[0]}"
    # outside the handler: the exception no longer holds the frames, and what they allocated
    again = engine is not None and engine.decoding.free()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return catch_oom(work) if again else reason


def free_beside(engine: Engine, devices: Iterable[torch.device]) -> int:
    """Return `free_bytes`, with what decode batches will take again or give up."""
    return free_bytes(devices) + engine.decoding.bytes_held


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
def text_and_dtype(spec: ModelSpec) -> tuple[Any, torch.dtype]:
    """Return the configuration of a model's text part, and the dtype of its cache."""
    config = (None if spec.shape else plain_config(spec.folder())) or config_of(spec)
    dtype = getattr(torch, spec.dtype) if spec.dtype != "auto" else getattr(config, "dtype", None) or torch.float32
    return text_config(config), dtype


def activations(text: Any, dtype: torch.dtype, tokens: int) -> int:
    """Return bytes of what one pass over so many tokens holds at a time. In a mixture of experts a token has
    several.
    """
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    experts = getattr(text, "num_experts_per_tok", None)
    if experts:
        inner = max(inner, experts * (getattr(text, "moe_intermediate_size", None) or inner))
    return tokens * (HIDDEN_SIZES * text.hidden_size + INNER_SIZES * inner) * dtype.itemsize
