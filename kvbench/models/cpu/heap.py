"""How the C library keeps memory that torch has given back, on a CPU.

A pass over a prompt allocates and frees tensors of megabytes layer after layer. glibc returns each to the kernel, which
hands the next one out page by page and zeroed: a tenth of the time of reading.
"""

import ctypes

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Options of `mallopt`, as in malloc.h."""
FROM_THE_HEAP = 2**25
"""Bytes of a block up to which it comes from the heap: the most that glibc accepts."""
KEPT = 2**28
"""Bytes at the end of the heap that are kept for later."""


def keep_freed_memory() -> bool:
    """Let the C library keep up to a quarter of a gibibyte; whether it has such a setting (glibc has)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(MMAP_THRESHOLD, FROM_THE_HEAP), mallopt(TRIM_THRESHOLD, KEPT)])
