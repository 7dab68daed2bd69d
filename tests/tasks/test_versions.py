"""A task's version names its prompts and its metric: neither changes without it."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvbench.models.prompts.tokens import TokensOf
from tests.tasks.versions import GOLDEN, TABLE, entry, made_up, names

COMMITTED = json.loads(TABLE.read_text("utf-8"))
TELL = "its prompt, settings or metric changed: give it another version, then run python -m tests.tasks.versions"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    made_up(folder)
    return folder


@pytest.fixture(scope="module")
def tokens() -> TokensOf:
    return TokensOf(AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer"))


def test_every_task_is_in_the_table() -> None:
    assert sorted(COMMITTED) == sorted(names())


@pytest.mark.parametrize("name", names())
def test_nothing_changes_without_its_version(name: str, root: Path, tokens: TokensOf) -> None:
    pytest.importorskip("rouge_score")
    _, now = entry(name, root, tokens)
    before = COMMITTED[name]
    if now["sha256"] != before["sha256"]:
        assert now["version"] != before["version"], f"{name}: {TELL}"
    assert now == before, f"{name}: another version: run python -m tests.tasks.versions"
