"""Descriptions of cells in tests: a cell is named by the hash of its description. And what a row says of its cell."""

from collections.abc import Mapping
from typing import Any

from kvbench.records.environment import content_hash

ASKED: Mapping[str, Any] = {
    "model": "reference",
    "task": "ruler/niah_single_1",
    "task_version": "2026",
    "context_length": 512,
    "policy": "snapkv",
    "score": "attn",
    "budget": "0.1",
    "variant": "exact",
    "layout": "kv_heads",
    "schedule": "prompt",
    "seed": 0,
    "code": "c0de00000000",
}
"""Columns of a row that say what was asked, all plausible."""


def name_of(description: dict[str, Any]) -> str:
    """The name of a cell."""
    return content_hash(description)[:16]
