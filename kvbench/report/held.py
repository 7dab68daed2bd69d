"""Bytes of keys and values that a cell holds when its answer begins: what methods are compared by.

`cache_bytes` of a row is measured right after the eviction. With `schedule.evict_after=context` the question is read
after it and is held too, as long as the answer is decoded: unquantised in every store, once per query head with
`layout=query_heads`, evicted from with `schedule.decode_every`. Rows say how many tokens that are, so nothing is
recorded beside them.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kvbench.records.rows import fulfils

NEEDED = (
    *("schedule", "layout", "local_layers", "prompt_tokens", "kept_tokens", "kept_fraction"),
    *("cache_bytes", "full_cache_bytes"),
)
"""Columns of rows that held bytes are made from."""
_CONTEXT = "context"


def held_bytes(rows: pa.Table) -> dict[str, np.ndarray]:
    """`held_bytes` and `full_held_bytes` [rows]: of the cell, and of the full cache on its prompt; NaN if unknown.

    rows: a table with the columns ``NEEDED``.
    """
    held, full = (
        rows[name].to_numpy(zero_copy_only=False).astype(float) for name in ("cache_bytes", "full_cache_bytes")
    )
    places = np.flatnonzero(fulfils(rows["schedule"], lambda text: (text or "").split()[:1] == [_CONTEXT]))
    for place, row in zip(places, rows.select(list(NEEDED)).take(pa.array(places)).to_pylist(), strict=True):
        pair, question = pair_bytes(row), question_tokens(row)
        held[place] += pair * copies(row) * _held_of(question, row)
        full[place] += pair * question
    return {"held_bytes": held, "full_held_bytes": full}


def tokens_read(row: Mapping[str, Any]) -> int:
    """Tokens read before the (first) eviction. The row has kept some."""
    return round(row["kept_tokens"] / row["kept_fraction"])


def question_tokens(row: Mapping[str, Any]) -> int:
    """Tokens read after the eviction and before the answer; 0 where nothing could be evicted from."""
    if not row["kept_tokens"] or not row["kept_fraction"] or row["prompt_tokens"] is None:
        return 0
    return max(0, row["prompt_tokens"] - tokens_read(row))


def copies(row: Mapping[str, Any]) -> int:
    """Return how often the evicted cache holds a pair: once per KV head, or per query head (`layout=query_heads`)."""
    if row["layout"] != "query_heads" or not row["cache_bytes"] or not row["full_cache_bytes"]:
        return 1
    return max(1, round(row["cache_bytes"] / row["kept_fraction"] / row["full_cache_bytes"]))


def steps_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings of a schedule that are numbers of tokens, by name."""
    return {name: int(tokens) for name, tokens in re.findall(r"(\w+)=(\d+)", row["schedule"] or "")}


def _held_of(question: int, row: Mapping[str, Any]) -> int:
    """Pairs that a question adds: all, or what the evictions from it leave."""
    steps = steps_of(row)
    if "decode_every" not in steps:
        return question
    return min(question, steps.get("answer_budget", 0) + question % steps["decode_every"])


def pair_bytes(row: Mapping[str, Any]) -> float:
    """Return bytes of a token in all layers that grow. Layers with a full window of their own do not: with such, what
    the eviction has freed says it; a row that freed nothing gives the most that it can be.
    """
    if not row["full_cache_bytes"] or not row["kept_tokens"] or not row["kept_fraction"]:
        return 0.0
    read, freed = tokens_read(row), row["full_cache_bytes"] - (row["cache_bytes"] or 0)
    evicted = read - row["kept_tokens"]
    if row["local_layers"] and row["layout"] == "kv_heads" and freed > 0 and evicted >= 1:
        return min(freed / evicted, row["full_cache_bytes"] / read)
    return row["full_cache_bytes"] / read
