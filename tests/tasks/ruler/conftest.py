"""RULER's tasks as their files describe them, and the tokenizer that counted the official rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from kvbench.extras.conformance.golden.prompts import task_of

GOLDEN = Path(__file__).parents[2] / "golden" / "ruler"


def make(name: str, root: Path | str = "data", **fields: Any) -> Any:
    """The task of conf/task/ruler/NAME.yaml, some of its fields replaced."""
    return task_of(f"ruler/{name}", str(root), **fields)


def count_words(text: str) -> int:
    """A tokenizer of one token a word."""
    return len(text.split())


@pytest.fixture(scope="session")
def count_tokens() -> Callable[[str], int]:
    """Counts as the official rows were counted: a byte-level BPE of 8000 tokens."""
    tokenizer = Tokenizer.from_file(str(GOLDEN / "tokenizer" / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def squad(articles: int) -> dict[str, Any]:
    """So many articles of three paragraphs; a question that has no answer before each that has one."""
    names = [[f"{article}.{number}" for number in range(3)] for article in range(articles)]
    return {"data": [{"paragraphs": [_paragraph(name) for name in article]} for article in names]}


def _paragraph(name: str) -> dict[str, Any]:
    unanswerable = {"question": f"What is not {name}?", "is_impossible": True, "answers": []}
    answers = [{"text": f"answer {name}"}, {"text": f"answer {name}"}]
    entry = {"question": f"What is {name}?", "is_impossible": False, "answers": answers}
    return {"context": f"Paragraph {name} says: answer {name}.", "qas": [unanswerable, entry]}


def hotpotqa(rows: int) -> list[dict[str, Any]]:
    """So many questions of ten documents each, neighbours sharing one."""
    return [
        {
            "question": f"Which is {row}?",
            "answer": f"answer {row}",
            "context": [[f"Title {9 * row + number}", ["One sentence.", f" Number {row}."]] for number in range(10)],
        }
        for row in range(rows)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with two essays of 900 words in all, and small data sets of questions."""
    folder = tmp_path / "paul_graham_essays"
    folder.mkdir()
    for name, start in (("b.txt", 450), ("a.txt", 0)):
        words = (f"word{number}{'.' if number % 9 == 8 else ''}" for number in range(start, start + 450))
        (folder / name).write_text(" ".join(words) + "\n", encoding="utf-8")
    (tmp_path / "ruler").mkdir()
    for dataset, content in (("squad", squad(40)), ("hotpotqa", hotpotqa(60))):
        (tmp_path / "ruler" / f"{dataset}.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path
