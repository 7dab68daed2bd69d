"""task=booksum from the command line: chapters in blocks and summaries after their chapter, against a mask."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from kvbench.tasks.likelihood import BookSum
from kvbench.tasks.task import InvalidSample
from tests.cli.conftest import Command, outcomes, rows_of
from tests.cli.test_perplexity import cross_entropy
from tests.tasks.infinitebench.conftest import Words
from tests.tasks.scbench.rows import make, write

CHAPTER, SUMMARY = "It was a grey morning when the coach came.", "A coach comes."
ROWS = (
    {"chapter": CHAPTER, "summary_text": SUMMARY},
    {"chapter": CHAPTER, "summary_text": "Late."},
    {"chapter": "Two!"},
)
STREAMING = ("policy=streaming_llm", "policy.sink=3", "budget=10", "schedule.prefill_block=7")


@pytest.fixture
def shared_settings(bytes_model: Path, tmp_path: Path) -> tuple[str, ...]:
    """Settings that both readings share."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "booksum/test", *ROWS)
    where = ("data.root=data", "results.dir=out")
    return ("model=hf", f"model.path={bytes_model}", "model.dtype=float32", "task.context_length=30", *where)


def seen(fed: int, cuts: list[int]) -> torch.Tensor:
    """What each of so many tokens sees: three sinks, the newest seven at the last cut, what is new."""
    sees = torch.zeros(fed, fed, dtype=torch.bool)
    for row in range(fed):
        last = max((cut for cut in cuts if cut <= row), default=0)
        for column in range(row + 1):
            sees[row, column] = column < 3 or column >= last - 7
    return sees


def test_a_chapter_is_read_in_blocks(kvbench: Command, shared_settings: tuple[str, ...], bytes_model: Path) -> None:
    """Each chapter once; a token sees the cache after the last block, and its own block up to itself."""
    assert kvbench("run", *shared_settings, "task=booksum/chapter", *STREAMING).code == 0
    first, second = sorted(rows_of(Path("out")), key=lambda row: row.sample)
    ids = AutoTokenizer.from_pretrained(bytes_model)(CHAPTER).input_ids[:31]
    nll = cross_entropy(bytes_model, ids[:-1], ids[1:], seen(30, [7, 14, 21, 28]))
    assert first.value == pytest.approx(nll.mean().item(), abs=1e-5) and first.new_tokens == 30
    assert second.new_tokens == 4 and first.schedule == "prompt prefill_block=7 decode_every=1"
    assert (first.kept_tokens, first.task_version) == (10, "booksum-chapter.1")
    whole = cross_entropy(bytes_model, ids[:-1], ids[1:], torch.ones(30, 30, dtype=torch.bool).tril())
    assert abs(whole.mean() - nll.mean()) > 1e-3  # the cut is what is tested
    planned = kvbench("plan", *shared_settings, "task=booksum/chapter", *STREAMING, "results.dir=new").out
    assert "evicted during prefill, 7 tokens at a time" in planned


@pytest.mark.parametrize("every", ["1", "null"])
def test_a_summary_is_read_after_its_chapter(
    kvbench: Command, shared_settings: tuple[str, ...], bytes_model: Path, every: str
) -> None:
    """The chapter in blocks but for its last token, which is fed as those of the summary are."""
    given = ("task=booksum/summary", "task.given=20", "task.samples=2", f"schedule.decode_every={every}")
    assert kvbench("run", *shared_settings, *given, *STREAMING).code == 0
    row = min(rows_of(Path("out")), key=lambda row: row.sample)
    tokenizer = AutoTokenizer.from_pretrained(bytes_model)
    lead = tokenizer(CHAPTER).input_ids[:20] + tokenizer("\n\n", add_special_tokens=False).input_ids
    ids = lead + tokenizer(SUMMARY, add_special_tokens=False).input_ids
    fed, read = len(ids) - 1, len(lead) - 1
    cuts = [*range(7, read, 7), read, *(range(read + 1, fed) if every == "1" else ())]
    nll = cross_entropy(bytes_model, ids[:-1], ids[1:], seen(fed, cuts))[len(lead) - 1 :]
    assert row.value == pytest.approx(nll.mean().item(), abs=1e-5)
    assert row.new_tokens == len(SUMMARY) and row.prompt_tokens == fed
    assert row.kept_tokens == (10 if every == "1" else 10 + len(SUMMARY))


def test_cells_read_side_by_side_are_the_cells_alone(kvbench: Command, shared_settings: tuple[str, ...]) -> None:
    swept = (*shared_settings, "task=booksum/chapter", "schedule.prefill_block=7", "policy.recent=4")
    assert kvbench("run", *swept, "policy=h2o_obcache,tova_obcache", "score=attn,caote", "budget=9").code == 0
    assert kvbench("run", *swept, "policy=h2o_obcache", "score=caote", "budget=9", "results.dir=alone").code == 0
    assert outcomes(Path("alone")).items() <= outcomes(Path("out")).items()


def test_rows_that_are_none_and_settings_that_cannot_be(kvbench: Command, shared_settings: tuple[str, ...]) -> None:
    summary = make(Path("data"), "booksum/summary")
    assert isinstance(summary, BookSum) and summary.samples == 3
    *_, spoilt = summary.generate(Words(), range(3))
    assert isinstance(spoilt, InvalidSample) and "booksum/test.jsonl:3: it has no summary_text" in spoilt.error
    for name, fields, reason in (
        ("chapter", {"given": 5}, "allowed: 0, since nothing is read before a chapter"),
        ("summary", {"given": 0}, "allowed: 2 or more, the tokens of the chapter that are read first"),
        ("chapter", {"reset": False}, "every text starts from an empty cache"),
        ("chapter", {"scored": "book"}, "task.scored=book: allowed: 'chapter' or 'summary'"),
    ):
        with pytest.raises(ValueError, match=reason):
            make(Path("data"), f"booksum/{name}", **fields)
    for settings, reason in (
        (("task.evict=before", "policy=h2o_obcache", "budget=40"), "schedule.prefill_block=null"),
        (("schedule.evict_after=context",), "schedule.evict_after=prompt"),
    ):
        refused = kvbench("run", *shared_settings, "task=booksum/chapter", *settings)
        assert refused.code == 2 and reason in refused.err, refused.err
    assert kvbench("run", *shared_settings, "task=booksum/chapter", "data.root=elsewhere").code == 3
