"""Bytes that are held while an answer is decoded, against those that the decode batches count themselves."""

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvbench.eviction.schedule import Schedule
from kvbench.extras.stores.packed import Packed
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.load import LoadedModel
from kvbench.records import Row
from kvbench.records.columns import table_of
from kvbench.report.held import held_bytes
from kvbench.report.tables.summary import summaries
from kvbench.run.plan import PrefillJob
from kvbench.run.prefill_job import run_prefill_job
from tests.models.conftest import tiny_llama
from tests.run.test_prefill_job import SNAPKV, TASK, cells, samples_of

PAIR = 3 * 2 * 8 * 2 * 4
"""Bytes of a token: layers, KV heads, head size, keys and values, float32."""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """One prompt, before and after its question was read, in two stores and two layouts."""
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer")
    llama = tiny_llama(vocab_size=len(tokenizer))
    bridge.attach(llama)
    model = LoadedModel(Engine(llama, max_batch=3), tokenizer, frozenset(), 512, {"name": "cpu"})
    rows: list[Row] = []
    for moment in ("prompt", "context"):
        full, snapkv = cells("0.3", evict_after=moment)
        apart = snapkv.with_method(policy=replace(SNAPKV, layout="query_heads"))
        every = replace(snapkv, schedule=Schedule(moment, decode_every=8))  # type: ignore[arg-type]
        stored = [cell.with_method(holder=holder) for cell in (full, snapkv) for holder in (None, Packed("int8"))]
        job = PrefillJob({0: (*stored, apart, *([every] if moment == "context" else []))})
        rows += run_prefill_job(model, job, samples_of(0), "here").rows
    assert all(row.error is None for row in rows), [row.error for row in rows]
    return rows


def test_what_is_held_is_what_a_batch_holds_without_room_for_the_answer(rows: list[Row]) -> None:
    """`peak_bytes` of a cell counts its pairs and its tails, of the question and of the longest answer."""
    held = held_bytes(table_of(rows))
    seen = set()
    for row, mine in zip(rows, held["held_bytes"], strict=True):
        if "decode_every" in row.schedule:
            continue
        times = 3 if row.layout == "query_heads" else 1
        assert mine == row.peak_bytes - TASK.max_new_tokens * PAIR * times, (row.policy, row.store, row.layout)
        assert (mine > row.cache_bytes) == (row.schedule == "context")
        seen.add((row.schedule, row.store, row.layout))
    assert len(seen) == 6


def test_the_full_cache_is_one_before_and_after_the_question(rows: list[Row]) -> None:
    """So shares of it mean the same under both schedules."""
    assert len({*held_bytes(table_of(rows))["full_held_bytes"]}) == 1
    full = {
        line.schedule: line for line in summaries(row for row in rows if row.store == "flat") if line.policy == "full"
    }
    assert full["context"].held_bytes == full["prompt"].held_bytes == full["prompt"].cache_bytes


def test_evictions_from_the_question_leave_less_of_it(rows: list[Row]) -> None:
    (row,) = (row for row in rows if "decode_every" in row.schedule)
    question = row.prompt_tokens - round(row.kept_tokens / row.kept_fraction)
    (held,) = held_bytes(table_of([row]))["held_bytes"]
    assert held == row.cache_bytes + PAIR * (question % 8) < row.cache_bytes + PAIR * question


def test_layers_with_a_window_of_their_own_do_not_grow(cell) -> None:
    """Local layers hold 500 bytes, the others 10 a token: 100 tokens of context, 20 of the question."""
    sizes = {"prompt_tokens": 120, "full_cache_bytes": 1500, "local_layers": 1, "layout": "kv_heads"}
    evicted = cell([1.0], kept_tokens=10.0, kept_fraction=0.1, cache_bytes=600, schedule="context", **sizes)
    held = held_bytes(table_of(evicted))
    assert held["held_bytes"].tolist() == [800] and held["full_held_bytes"].tolist() == [1700]
    silent = held_bytes(table_of([*cell([1.0], schedule="context"), *cell([1.0], schedule=None, cache_bytes=5)]))
    assert str(silent["held_bytes"].tolist()) == "[nan, 5.0]", "rows that do not say it have none"
