"""Whether a method acted on a prompt: evicted, packed or pruned its cache, or read a part of it.

A prompt that the budget holds, and an answer that ends before the first eviction from it, say nothing of a method.
"""

import re

import numpy as np
import pyarrow as pa

from kvbench.records.rows import fulfils
from kvbench.report.held import NEEDED as HELD_FROM
from kvbench.report.held import copies, held_bytes, pair_bytes
from kvbench.support.plugins import held_groups

NEEDED = (*HELD_FROM, "policy", "decode_evictions", "read_bytes", "new_tokens")
"""Columns of rows that say it."""
FULL = "full"
"""The policy that never acts; its label has more words where pairs are held in another way."""
CONTROL = 0.2
"""Below this share of the prompts in which its method acted, a cell is a control: most of it is the full cache."""


def acted(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Of each row whether its method acted, and whether that is known; both [rows].

    rows: a table with the columns ``NEEDED``. It acted where it kept less than all pairs or bytes, where pairs left the
    cache later, and where a holder of pairs read less than was held. Rows of servers may not say, nor earlier rows of
    cells that evict from the answer, and kept all of the prompt.
    """
    kept, held_bytes, full_bytes, evictions_later, read_bytes = (
        rows[name].to_numpy().astype(float)
        for name in ("kept_fraction", "cache_bytes", "full_cache_bytes", "decode_evictions", "read_bytes")
    )
    holder, later_evictions = re.compile(rf" (?:{'|'.join(held_groups())})="), re.compile(r"\bdecode_every=")
    has_holder = fulfils(rows["policy"], lambda label: holder.search(label or "") is not None)
    never = fulfils(rows["policy"], lambda label: label == FULL)
    evicts_later = fulfils(rows["schedule"], lambda text: later_evictions.search(text or "") is not None)
    is_less = (kept < 1) | (held_bytes < full_bytes) | (evictions_later > 0)
    is_less[has_holder] |= read_bytes[has_holder] < _dense(rows.filter(pa.array(has_holder)))
    is_measured = np.isfinite(kept) | np.isfinite(held_bytes - full_bytes)
    says_later, says_read = ~evicts_later | np.isfinite(evictions_later), ~has_holder | np.isfinite(read_bytes)
    return is_less & ~never, never | is_less | (is_measured & says_later & says_read)


def _dense(rows: pa.Table) -> np.ndarray:
    """Bytes [rows] that a token of the answer reads, on average, if all that is held is read, less 1 for rounding."""
    tails = [
        pair_bytes(row) * copies(row) * (row["new_tokens"] or 0) / 2 for row in rows.select(list(NEEDED)).to_pylist()
    ]
    return held_bytes(rows)["held_bytes"] + np.array(tails, float) - 1
