"""Memory: what cells of a prompt will hold, how many fit at a time, and what is done when they did not.

Cells are split, never dropped: those of a tile that do not fit together are held one part after the other. Every part
is padded to the rows of a whole tile, whose missing cells hold nothing, so a split changes no bit of any row.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from kvbench.cache.stores import packing_of
from kvbench.run.plan import Cell

SHARE = 0.9
"""Part of the free memory that cells may be planned into; the rest is for what passes hold meanwhile."""
COPIES = 2
"""A cell's cache and the tile's copy of it."""
CPU = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
"""How torch words it on a CPU, where it raises a plain RuntimeError."""

T = TypeVar("T")


def needed(cell: Cell, tokens: int, room: int, pair_bytes: int, group: int) -> int:
    """Bytes that a cell takes beside the full cache of `tokens` tokens while it decodes at most `room` more.

    pair_bytes: of a token in every stored head of every layer. group: query heads that share a KV head.
    """
    kept = min(cell.budget.of(tokens), tokens)
    copies = group if cell.policy.layout == "query_heads" else 1
    if cell.store == "shared":
        return room * pair_bytes + tokens * pair_bytes // 64  # a mask is a byte where a pair has 64 or more
    if packing_of(cell.store):  # in few bits, and a layer after the other as attention reads it
        return copies * (kept + room) * pair_bytes
    return copies * (COPIES * kept + room) * pair_bytes


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated, those that torch keeps for later counted in."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parts(cells: Sequence[T], bytes_of: Callable[[T], int], free: int, most: int) -> Iterator[list[T]]:
    """Cells in their order, as many at a time as are planned to fit into `free` bytes: `most` at most, one at least."""
    part: list[T] = []
    for cell in cells:
        if part and (len(part) == most or sum(map(bytes_of, part)) + bytes_of(cell) > SHARE * free):
            yield part
            part = []
        part.append(cell)
    if part:
        yield part


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory has run out."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in CPU)
    )


def halving(cells: list[T], do: Callable[[list[T]], None], failed: Callable[[T, str], None]) -> int:
    """Do cells together; where memory runs out, each half by itself. Returns the most that were done at a time.

    A cell that does not fit alone has failed, with the first line of what torch says. Other exceptions pass.
    """
    try:
        do(cells)
        return len(cells)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0]
    # past the handler: the exception no longer holds the frames, and what they allocated
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(cells) == 1:
        failed(cells[0], f"out of memory: {reason}")
        return 1
    middle = (len(cells) + 1) // 2
    return max(halving(cells[:middle], do, failed), halving(cells[middle:], do, failed))
