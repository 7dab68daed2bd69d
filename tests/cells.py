"""Descriptions of cells in tests: a cell is named by the hash of its description."""

from typing import Any

from kvbench.records.environment import content_hash


def name_of(description: dict[str, Any]) -> str:
    """The name of a cell."""
    return content_hash(description)[:16]
