"""kvbench run with readers: rows, what a token reads, answers."""

from pathlib import Path

from kvbench.config.entries import options
from kvbench.records import Row
from tests.cli.conftest import Command, rows_of

READERS = ",".join(options("reader"))


def by_policy(rows: list[Row]) -> dict[str, list[Row]]:
    return {policy: [row for row in rows if row.policy == policy] for policy in {row.policy for row in rows}}


def test_every_reader_runs_on_the_embedded_model(kvbench: Command) -> None:
    """Each is a method of its own, and what it reads is less than what is kept."""
    words = ("task.samples=1", "task.context_length=400", "reference=full", "budget=0.5")
    finished = kvbench("run", *words, f"reader={READERS}", "reader.budget=0.3", "results.dir=out")
    assert finished.code == 0, finished.err
    rows = by_policy(rows_of(Path("out")))
    assert len(rows) == 6 and all(row.error is None for each in rows.values() for row in each)
    (dense,), (full,) = rows.pop("snapkv"), rows.pop("full")
    assert dense.cache_bytes is not None and dense.read_bytes is not None and full.read_bytes is not None
    assert dense.cache_bytes < dense.read_bytes < full.read_bytes and dense.index_bytes == 0
    for policy, (row,) in rows.items():
        assert policy.startswith("snapkv reader=") and "reader.budget=0.3" in policy
        assert (row.kept_sha256, row.cache_bytes) == (dense.kept_sha256, dense.cache_bytes)
        assert row.read_bytes is not None and row.index_bytes is not None
        assert row.read_bytes < dense.read_bytes and row.index_bytes > 0
    table = kvbench("report", "table", "--results", "out").out
    assert "snapkv reader=quest reader.budget=0.3" in table


def test_the_question_is_read_densely_unless_it_is_said(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """The first token of an answer then does not depend on the reader; a recorded row is found again."""
    words = (*tiny, "policy=full", "reader=dense,oracle_topk", "reader.budget=2", "schedule.evict_after=context")
    for question in ("dense", "sparse"):
        assert kvbench("run", *words, f"reader.question={question}", "task.max_new_tokens=1").code == 0
    rows = by_policy(rows_of(Path("out")))
    assert len(rows) == 3 and all(row.read_bytes is None for each in rows.values() for row in each)
    answers = {policy: [row.output_sha256 for row in each] for policy, each in rows.items()}
    dense = answers.pop("full")
    assert answers["full reader=oracle_topk reader.budget=2"] == dense
    assert answers["full reader=oracle_topk reader.budget=2 reader.question=sparse"] != dense


def test_readers_share_a_cache_that_was_evicted_from_while_it_was_read(kvbench: Command, tiny: tuple[str, ...]) -> None:
    words = (*tiny, "policy=snapkv", "policy.window=4", "policy.recent=4", "budget=20", "schedule.prefill_block=16")
    assert kvbench("run", *words, "reader=dense,oracle_topk", "reader.budget=2", "task.samples=1").code == 0
    dense, part = (row for row in rows_of(Path("out")) if row.policy != "full")
    assert dense.error is None and part.error is None and dense.kept_sha256 == part.kept_sha256
    assert dense.prefill_seconds == part.prefill_seconds
    assert dense.read_bytes is not None and part.read_bytes is not None and part.read_bytes < dense.read_bytes
