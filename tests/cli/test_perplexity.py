"""task=pg19 from the command line: nll against transformers, cuts against a mask, books, resuming, reports."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.records import Row
from kvbench.report.plots.perplexity import read_curves
from tests.cli.conftest import Command, outcomes, rows_of

BOOKS = {
    "b.txt": "It was late.\r\nNobody came.\r\n",
    "a.txt": "Call me\nwhat you like; " * 2,
    "c.txt": "Short, this one.",
}
STREAMING = ("policy=streaming_llm", "policy.sink=3")


@pytest.fixture
def pg19(bytes_model: Path, tmp_path: Path) -> tuple[str, ...]:
    """Settings: the three books above, 26 tokens of each."""
    (tmp_path / "data" / "pg19").mkdir(parents=True)
    for name, text in BOOKS.items():
        (tmp_path / "data" / "pg19" / name).write_bytes(text.encode())
    model = ("model=hf", f"model.path={bytes_model}", "model.dtype=float32")
    return ("task=pg19", *model, "task.samples=3", "task.context_length=26", "data.root=data", "results.dir=out")


def cross_entropy(model: Path, ids: Sequence[int], targets: Sequence[int], sees: torch.Tensor | None) -> torch.Tensor:
    """transformers' loss of the token after each of `ids`; row i sees the columns of `sees`."""
    mask = None if sees is None else torch.zeros(1, 1, *sees.shape).masked_fill(~sees, -math.inf)
    plain = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    with torch.inference_mode():
        logits = plain(torch.tensor([ids]), attention_mask=mask).logits[0]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="none")


def losses(model: Path, text: str, sees: torch.Tensor | None = None) -> torch.Tensor:
    """The loss of each of the first 26 tokens after <s>."""
    ids = AutoTokenizer.from_pretrained(model)(text.replace("\r\n", "\n")).input_ids[:27]
    ids = ids[:-1] if ids[-1] == 1 else ids  # what the tokenizer puts behind a text is no text
    return cross_entropy(model, ids[:-1], ids[1:], None if sees is None else sees[: len(ids) - 1, : len(ids) - 1])


def by_sample() -> list[Row]:
    return sorted(rows_of(Path("out")), key=lambda row: row.sample)


def test_full_is_the_cross_entropy_of_transformers(kvbench: Command, pg19: tuple[str, ...], bytes_model: Path) -> None:
    """Books by name, line ends, the first token after <s>, a book that ends early; and the curve beside the row."""
    assert kvbench("run", *pg19, "policy=full").code == 0
    rows = by_sample()
    curves = {curve.sample: curve for curve in read_curves(Path("out"), {rows[0].cell}, pytest.fail)}
    for row, name in zip(rows, sorted(BOOKS), strict=True):
        expected = losses(bytes_model, BOOKS[name])
        assert row.metric == "nll" and row.value == pytest.approx(expected.mean().item(), abs=1e-5)
        assert len(expected) == (16 if row.sample == 2 else 26)
        assert row.new_tokens == row.prompt_tokens == row.kept_tokens == len(expected)
        assert row.cache_bytes == row.full_cache_bytes == len(expected) * 3 * 2 * 8 * 2 * 4 and row.kept_fraction == 1.0
        assert row.prediction is None and row.prefill_seconds is None
        curve = curves[row.sample]
        assert curve.edges == (0, 1, 2, 4, 8, 16, 32)
        for low, high, total, count in zip(curve.edges, curve.edges[1:], curve.sums, curve.counts, strict=False):
            assert total == pytest.approx(expected[low:high].sum().item(), abs=1e-4)
            assert count == len(expected[low:high])


@pytest.mark.parametrize(("evict", "held"), [("after", 10), ("before", 9)])
def test_a_window_is_a_masked_forward(
    kvbench: Command, pg19: tuple[str, ...], bytes_model: Path, evict: str, held: int
) -> None:
    """A token sees three sinks, the newest that the cache still holds, and itself, all where they were read."""
    assert kvbench("run", *pg19, *STREAMING, "budget=10", f"task.evict={evict}").code == 0
    row, column = torch.arange(27)[:, None], torch.arange(27)
    sees = (column <= row) & ((column < 3) | (column >= row - (held - 3)))
    for book_row, name in zip(by_sample(), sorted(BOOKS), strict=True):
        assert book_row.value == pytest.approx(losses(bytes_model, BOOKS[name], sees).mean().item(), abs=1e-5)
        assert book_row.kept_tokens == min(held, book_row.prompt_tokens or 0)
        assert book_row.schedule == "prompt decode_every=1"
        assert book_row.decode_evictions == max(0, (book_row.prompt_tokens or 0) - held)
    whole = losses(bytes_model, BOOKS["a.txt"]).mean().item()
    assert abs(losses(bytes_model, BOOKS["a.txt"], sees).mean().item() - whole) > 1e-3  # the mask is what is tested


def test_cells_and_books_do_not_see_each_other(kvbench: Command, pg19: tuple[str, ...]) -> None:
    """Resumed, alone and in a full tile: the same rows, a curve for each, and nothing is read twice."""
    swept = ("policy=full,h2o_obcache,tova_obcache", "policy.recent=4", "score=attn", "budget=7,12")
    assert kvbench("run", *pg19, *swept, "task.samples=1").code == 0
    assert "5 rows are there already" in kvbench("run", *pg19, *swept).err
    assert "all 15 rows are in" in kvbench("run", *pg19, *swept).err
    assert kvbench("run", *pg19, *swept, "results.dir=once", "results.kept=positions").code == 0
    assert outcomes(Path("out")) == outcomes(Path("once")) and len(list(Path("once/kept").glob("*"))) == 1
    alone = ("policy=h2o_obcache", "policy.recent=4", "score=attn", "budget=12")
    assert kvbench("run", *pg19, *alone, "results.dir=alone").code == 0
    assert outcomes(Path("alone")).items() <= outcomes(Path("out")).items()
    lines = [json.loads(line) for file in Path("out/curves").glob("*") for line in file.read_text().splitlines()]
    assert {(line["cell"], line["sample"]) for line in lines} == set(outcomes(Path("out"))) and len(lines) == 15
    assert len({row.value for row in rows_of(Path("out")) if row.sample == 0}) == 5


def test_without_reset_books_are_one_stream(kvbench: Command, pg19: tuple[str, ...], bytes_model: Path) -> None:
    """All but the last token of each book, one after the other, seen through one mask; the first of a book is given."""
    settings = (*pg19, *STREAMING, "budget=10", "task.reset=false")
    assert kvbench("run", *settings).code == 0
    tokenizer = AutoTokenizer.from_pretrained(bytes_model)
    texts = [tokenizer(BOOKS[name].replace("\r\n", "\n")).input_ids[:-1][:27] for name in sorted(BOOKS)]
    fed, targets = (
        [token for ids in texts for token in part(ids)] for part in (lambda ids: ids[:-1], lambda ids: ids[1:])
    )
    row, column = torch.arange(len(fed))[:, None], torch.arange(len(fed))
    sees = (column <= row) & ((column < 3) | (column >= row - 7))
    expected = cross_entropy(bytes_model, fed, targets, sees)
    rows, start = by_sample(), 0
    for book_row, ids in zip(rows, texts, strict=True):
        own = expected[start : start + len(ids) - 1]
        assert book_row.value == pytest.approx(own.mean().item(), abs=1e-5) and book_row.new_tokens == len(own)
        start += len(own)
        assert book_row.prompt_tokens == start and book_row.kept_tokens == 10
    assert rows[0].task_version == "pg19-stream.1"
    assert kvbench("run", *settings, "task.samples=2", "results.dir=parts").code == 0
    assert kvbench("run", *settings, "results.dir=parts").code == 0, "the last book is read after the first two again"
    assert outcomes(Path("parts")) == outcomes(Path("out"))


def test_a_stream_stops_where_the_model_does_unless_positions_are_those_of_the_cache(
    kvbench: Command, pg19: tuple[str, ...]
) -> None:
    settings = (*pg19, *STREAMING, "budget=10", "task.reset=false", "model.max_length=60")
    assert kvbench("run", *settings).code == 4
    assert [row.error is None for row in by_sample()] == [True, True, False]
    assert "beyond the longest sequence of the model, 60 tokens; use policy.positions=cache" in (
        by_sample()[2].error or ""
    )
    assert kvbench("run", *settings, "policy.positions=cache", "results.dir=far").code == 0
    refused = kvbench("run", *pg19, *STREAMING, "budget=0.5", "task.reset=false")
    assert refused.code == 2 and "but budget=0.5 is a fraction of the prompt: use a number of KV pairs" in refused.err


def test_a_book_that_cannot_be_read_is_an_error_row(kvbench: Command, pg19: tuple[str, ...]) -> None:
    """Without a token, no UTF-8, or so short that a share of it cannot hold what is protected; others go on."""
    Path("data/pg19/a.txt").write_text("")
    Path("data/pg19/b.txt").write_bytes(b"caf\xe9")
    finished = kvbench("run", *pg19, "policy=full,h2o_obcache", "policy.recent=4", "budget=0.2")
    assert finished.code == 4
    errors = {(row.policy, row.sample): row.error or "" for row in rows_of(Path("out"))}
    assert all("no token to score" in errors[policy, 0] for policy in ("full", "h2o_obcache recent=4"))
    assert errors["full", 1] == "pg19/b.txt: not UTF-8: unexpected end of data at byte 3"
    assert "cannot hold the 4 protected tokens" in errors["h2o_obcache recent=4", 2] and not errors["full", 2]
    Path("data/pg19/a.txt").write_text(BOOKS["a.txt"])
    stream = kvbench("run", *pg19, *STREAMING, "budget=10", "task.reset=false", "results.dir=stream")
    assert stream.code == 4 and "1 failed" in stream.err, "a stream goes on without it"


@pytest.mark.parametrize("stream", [False, True], ids=["books", "stream"])
def test_cells_that_do_not_fit_together_are_halved(
    kvbench: Command, pg19: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Memory runs out in the middle of a book: rows, curves and kept sets are those of a run with enough of it."""
    swept = ("policy=tova_obcache,streaming_llm", "policy.recent=3", "score=attn", "budget=7,9")
    settings = (*pg19, *swept, "task.samples=2", "task.context_length=12", f"task.reset={not stream}")
    settings = (*settings, "results.kept=positions")
    assert kvbench("run", *settings).code == 0
    attend = EvictingBatch.attend

    def short_of_memory(tile: EvictingBatch, *given: Any) -> torch.Tensor:
        if tile.num_active > 2 and tile.num_new_tokens > 9:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return attend(tile, *given)

    monkeypatch.setattr(EvictingBatch, "attend", short_of_memory)
    halved = kvbench("run", *settings, "results.dir=halved")
    assert halved.code == 0 and "ran out of memory" in halved.err
    assert outcomes(Path("halved")) == outcomes(Path("out")) and len(outcomes(Path("out"))) == 8
    for room in ("curves", "kept"):
        assert _lines(Path("halved", room)) == _lines(Path("out", room))


def _lines(folder: Path) -> list[str]:
    return sorted(line for file in folder.glob("*") for line in file.read_text().splitlines())


def test_a_cell_without_memory_is_an_error_of_its_rows(
    kvbench: Command, pg19: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = EvictingBatch.finish

    def short_of_memory(tile: EvictingBatch, new: int) -> None:
        finish(tile, new)
        if any(cache.every is None for cache in tile.caches) and tile.num_new_tokens > 9:  # the full cache
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    monkeypatch.setattr(EvictingBatch, "finish", short_of_memory)
    assert kvbench("run", *pg19, "policy=full,h2o_obcache", "policy.recent=4", "budget=7", "task.samples=1").code == 4
    errors = {(row.policy, row.error) for row in rows_of(Path("out"))}
    assert errors == {("full", "out of memory: CUDA out of memory."), ("h2o_obcache recent=4", None)}


def test_what_books_or_model_do_not_have_is_refused(kvbench: Command, pg19: tuple[str, ...]) -> None:
    reasons = {"task.samples=4": "pg19 has 3 samples, none is 3", "task.context_length=513": "at most 512 tokens"}
    for setting, reason in reasons.items():
        finished = kvbench("run", *pg19, "policy=h2o_obcache", "budget=20", setting)
        assert finished.code == 2 and reason in finished.err and not Path("out/rows").exists()


def test_reports_show_perplexity(kvbench: Command, pg19: tuple[str, ...]) -> None:
    """exp of the mean over all tokens: 68 of them, 26 of the first book, 16 of the last."""
    assert kvbench("run", *pg19, "policy=full,streaming_llm", "budget=5,10").code == 0
    full = [row for row in rows_of(Path("out")) if row.policy == "full"]
    nll = sum((row.value or 0) * (row.new_tokens or 0) for row in full) / 68
    table = kvbench("report", "table", "--results", "out", "--format", "csv", "policy=full").out.splitlines()
    cells = dict(zip(table[0].split(","), table[1].split(","), strict=True))
    assert cells["metric"] == "perplexity" and float(cells["mean"]) == pytest.approx(math.exp(nll))
    assert (
        "y=ratio needs x=position"
        in kvbench("report", "plot", "perplexity", "--results", "out", "--out", "a.png", "x=pairs", "y=ratio").err
    )
    for x in ("position", "pairs"):
        assert kvbench("report", "plot", "perplexity", "--results", "out", "--out", f"{x}.png", f"x={x}").code == 0
        assert Path(f"{x}.png").stat().st_size > 5000
    planned = kvbench("plan", *pg19, "policy=full,h2o_obcache", "policy.recent=4", "budget=12", "results.dir=new").out
    assert "pg19" in planned and "evicted during prefill" in planned
    assert "to score: 3 texts, 6 times in all, at most 156 tokens" in planned
