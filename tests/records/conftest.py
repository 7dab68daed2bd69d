from collections.abc import Callable

import pytest

from kvbench.records import Row


@pytest.fixture
def make() -> Callable[..., Row]:
    """A row from a few columns, the rest plausible."""

    def row(cell: str = "ab", sample: int = 0, **columns: object) -> Row:
        requested = {
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
        return Row(cell=cell, sample=sample, **(requested | columns))  # type: ignore[arg-type]

    return row
