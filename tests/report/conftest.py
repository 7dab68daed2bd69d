import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvbench.records import REQUESTED, Recorder, Row
from tests.cells import ASKED


@pytest.fixture
def cell() -> Callable[..., list[Row]]:
    """The rows of one cell from the values of its samples; a text is a failed sample, None one without a value."""

    def rows(values: Sequence[float | str | None], policy: str = "snapkv", **columns: object) -> list[Row]:
        score = None if policy in ("full", "streaming_llm") else "attn"
        budget = "1.0" if policy == "full" else "0.1"
        columns = {**ASKED, "score": score, "budget": budget, "metric": "string_match_all"} | columns
        columns["policy"] = policy
        words = [policy, *(f"{columns[name]}" for name in REQUESTED if name in columns and name != "policy")]
        columns = {"cell": hashlib.sha256("|".join(words).encode()).hexdigest()[:16]} | columns
        return [
            Row(
                sample=sample,
                value=value if isinstance(value, float) else None,
                error=value if isinstance(value, str) else None,
                **columns,  # type: ignore[arg-type]
            )
            for sample, value in enumerate(values)
        ]

    return rows


@pytest.fixture
def results(tmp_path: Path) -> Callable[..., Path]:
    """A results folder with the rows of these cells."""

    def folder(*cells: Sequence[Row]) -> Path:
        with Recorder(tmp_path / "runs") as recorder:
            for rows in cells:
                recorder.append(rows)
        return tmp_path / "runs"

    return folder


@pytest.fixture
def small(cell, results) -> Path:
    """Full cache, one policy without a score, one with two, two budgets; one cell missing, one with a failure."""

    def measured(share: float, evict: float = 0.002) -> dict[str, object]:
        return {
            "kept_fraction": share,
            "cache_bytes": int(512 * 1024 * share),
            "full_cache_bytes": 512 * 1024,
            "prefill_seconds": 0.045,
            "evict_seconds": evict,
            "decode_seconds": 1.25 * share,
            "new_tokens": 10,
        }

    hit, miss = 1.0, 0.0
    return results(
        cell([hit] * 9 + [miss], "full", **measured(1.0, 0.0)),
        cell([hit] + [miss] * 9, "streaming_llm", budget="0.2", **measured(0.2)),
        cell([miss] * 10, "streaming_llm", **measured(0.1)),
        cell([hit] * 5 + [miss] * 5, "snapkv", **measured(0.1)),
        cell([hit] * 8 + ["the | prompt\nis too long"] * 2, "snapkv", budget="0.2", **measured(0.2)),
        cell([hit] * 7 + [miss] * 3, "snapkv", score="obcache_joint", **measured(0.1)),
    )
