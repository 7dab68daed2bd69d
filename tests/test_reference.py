"""The embedded model: what it is, and that it tells eviction methods apart."""

import hashlib
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvbench.cli.main import main
from kvbench.records import read_rows
from tests.embedded import CONFIG, FOLDER


def test_it_is_small_and_has_grouped_queries() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 16e6
    assert CONFIG["model_type"] == "llama" and CONFIG["max_position_embeddings"] == 4096
    assert CONFIG["num_attention_heads"] >= 2 * CONFIG["num_key_value_heads"]


def test_its_card_names_the_bytes_that_are_there() -> None:
    card = (FOLDER / "README.md").read_text("utf-8")
    named = dict(re.findall(r"`([\w.]+)` \| `([0-9a-f]{64})`", card))
    files = {file.name: file for file in FOLDER.iterdir() if file.name != "README.md"}
    assert named == {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


@pytest.mark.parametrize("text", ["The grass is green.\n", "7374122", "键值缓存", "naïve \t  café 🙂", "\x00\x7f"])
def test_its_tokenizer_reads_any_text(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.decode(tokenizer(text).input_ids, clean_up_tokenization_spaces=False) == text


def test_digits_come_in_groups_of_at_most_two() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    pieces = [tokenizer.decode([token]) for token in tokenizer(" 7374122").input_ids]
    assert max(sum(letter.isdigit() for letter in piece) for piece in pieces) == 2


def test_it_answers_and_tells_methods_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all needles are found with everything kept, most with SnapKV at a tenth, few by StreamingLLM."""
    monkeypatch.chdir(tmp_path)
    quick = ["task.samples=10", "task.max_new_tokens=16", "results.dir=out"]
    assert main(["run", "policy=full,streaming_llm,snapkv", "budget=0.1", *quick]) == 0
    rows = read_rows("out")
    mean = {
        policy: sum(row.value or 0 for row in rows if row.policy == policy) / 10
        for policy in ("full", "streaming_llm", "snapkv")
    }
    assert mean["full"] >= 0.93
    assert mean["snapkv"] >= mean["streaming_llm"] + 0.3
    assert all(row.new_tokens is not None and row.new_tokens < 16 for row in rows if row.policy == "full")


@pytest.mark.parametrize(
    ("task", "length", "least"),
    [pytest.param("niah_single_2", 1024, 0.8, marks=pytest.mark.slow), ("niah_multikey_1", 512, 0.8)],
)
def test_it_finds_needles_in_essays(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, length: int, least: float
) -> None:
    """Essays are not what its haystacks were while it was trained."""
    monkeypatch.chdir(tmp_path)
    settings = [f"task.context_length={length}", "task.samples=5", "task.max_new_tokens=16", "results.dir=out"]
    assert main(["run", "policy=full", f"task=ruler/{task}", f"data.root={shared / 'data'}", *settings]) == 0
    values = [row.value or 0 for row in read_rows("out")]
    assert len(values) == 5 and sum(values) / 5 >= least
