"""RULER's tasks as their files describe them, and the tokenizer that counted the official rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf
from tokenizers import Tokenizer

from kvbench import paths

GOLDEN = Path(__file__).parents[2] / "golden" / "ruler"


def make(name: str, root: Path | str = "data", **fields: Any) -> Any:
    """The task of conf/task/ruler/NAME.yaml, some of its fields replaced."""
    config = OmegaConf.create({"seed": 42, "data": {"root": str(root)}})
    config["task"] = OmegaConf.load(paths.conf() / "task" / "ruler" / f"{name}.yaml")
    read = OmegaConf.to_container(config, resolve=True)["task"]  # type: ignore[index]
    return get_class(read.pop("_target_"))(**(read | fields))


def count_words(text: str) -> int:
    """A tokenizer of one token a word."""
    return len(text.split())


@pytest.fixture(scope="session")
def count_tokens() -> Callable[[str], int]:
    """Counts as the official rows were counted: a byte-level BPE of 8000 tokens."""
    tokenizer = Tokenizer.from_file(str(GOLDEN / "tokenizer" / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with two essays of 900 words in all."""
    folder = tmp_path / "paul_graham_essays"
    folder.mkdir()
    for name, start in (("b.txt", 450), ("a.txt", 0)):
        words = (f"word{number}{'.' if number % 9 == 8 else ''}" for number in range(start, start + 450))
        (folder / name).write_text(" ".join(words) + "\n", encoding="utf-8")
    return tmp_path
