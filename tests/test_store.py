"""`store=flat|shared`: the same answers from two stores, each under a cell of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvbench.cache.quantized import Store
from kvbench.eviction.allocation.heads import FlatHeads
from kvbench.eviction.schedule import Schedule
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.run.plan import PrefillJob, plan
from kvbench.run.prefill_job import run_prefill_job
from kvbench.tasks.likelihood import PG19
from tests.models.conftest import tiny_llama
from tests.run.test_prefill_job import SNAPKV, cells, samples_of


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    """Flat and shared cells of one sweep, two questions: uniform and ragged heads, a cache a query head, all kept."""
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parent / "golden" / "ruler" / "tokenizer")
    llama = tiny_llama(vocab_size=len(tokenizer))
    bridge.attach(llama)
    model = LoadedModel(Engine(llama, tile=3), tokenizer, frozenset(), 512, {"name": "cpu"})
    full, uniform = cells("0.3")
    ragged = replace(uniform, policy=replace(SNAPKV, heads=FlatHeads()))
    apart = replace(uniform, policy=replace(SNAPKV, layout="query_heads"))
    flat = (full, uniform, ragged, apart)
    job_cells = (*flat, *(replace(cell, store="shared") for cell in flat))
    job_rows = run_prefill_job(model, PrefillJob({0: job_cells, 2: job_cells}), samples_of(0, 2), "here").rows
    assert model.engine.counters.prefills == 1 and all(row.error is None for row in job_rows)
    return job_rows


def test_both_stores_say_the_same(rows: list[Any]) -> None:
    for start in (0, 8):
        for flat, shared in zip(rows[start : start + 4], rows[start + 4 : start + 8], strict=True):
            assert (flat.store, shared.store) == ("flat", "shared") and flat.cell != shared.cell
            for name in ("policy", "budget", "layout", "kept_tokens", "kept_sha256", "output_sha256", "prediction"):
                assert getattr(flat, name) == getattr(shared, name), name
            assert abs(flat.top2_margin - shared.top2_margin) < 1e-3


def test_bytes_of_the_shared_store_are_those_of_the_full_cache(rows: list[Any]) -> None:
    for row in (row for row in rows if row.store == "shared"):
        heads = 6 if row.layout == "query_heads" else 2
        seen = row.kept_tokens / row.kept_fraction
        assert row.cache_bytes == row.full_cache_bytes
        positions = 3 * 2 * seen * 4
        assert row.allocated_bytes == pytest.approx(row.full_cache_bytes + positions + 3 * heads * seen)
        assert row.peak_bytes > row.cache_bytes


def test_a_flat_cell_is_named_as_before_there_was_a_choice() -> None:
    (cell,) = cells()
    assert "store" not in cell.description
    assert replace(cell, store="shared").description == cell.description | {"store": "shared"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schedule": Schedule(decode_every=2)}, "schedule.decode_every=2 evicts from the answer too"),
        ({"schedule": Schedule(prefill_block=8)}, "schedule.prefill_block=8 evicts while the prompt is read"),
        ({"policy": replace(SNAPKV, positions="cache")}, "policy.positions=cache rotates the keys of each cell anew"),
        ({"task": PG19(context_length=9)}, "task pg19 evicts while it reads"),
    ],
)
@pytest.mark.parametrize(
    ("store", "what"),
    [("shared", "one full cache for all cells"), ("int4", "quantized once, after eviction")],
)
def test_what_a_store_cannot_hold_is_refused(store: Store, what: str, changes: dict[str, Any], reason: str) -> None:
    """No mask over the full cache, or a copy that is not packed once."""
    (_, cell) = cells("0.3", evict_after="prompt")
    with pytest.raises(ValueError, match=f"store={store} is {what}, but {reason}"):
        plan([replace(cell, store=store, **changes)], set())
