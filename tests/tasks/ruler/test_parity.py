"""Byte parity of RULER's prompts and answers with what the official generators wrote, in both eras.

Rows whose haystack holds third-party text are read from the shared folder, the others are in tests/golden.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvbench.tasks.ruler import published
from kvbench.tasks.task import Sample
from tests.tasks.ruler.conftest import GOLDEN, make

OWN = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("era*/*.jsonl"))
ESSAYS = [
    *(f"era2026_4096/niah_{name}.jsonl" for name in ("single_2", "single_3", "multikey_1", "multivalue", "multiquery")),
    *(f"era2024_4096/niah_{name}.jsonl" for name in ("single_2", "multikey_1", "multivalue", "multiquery")),
]


def rows_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def check(samples: Sequence[Sample], rows: Sequence[dict], count_tokens: Callable[[str], int]) -> None:
    """Rows of 2026 have a column for the answer prefix, those of 2024 end their input with it.

    Lengths of 2024 are not compared: vt counts the parts of a prompt one by one.
    """
    assert [sample.prompt for sample in samples] == [row["input"] + row.get("answer_prefix", "") for row in rows]
    assert [list(sample.references) for sample in samples] == [row["outputs"] for row in rows]
    for sample, row in zip(samples, rows, strict=True):
        if "answer_prefix" in row:
            assert sample.answer_prefix == row["answer_prefix"]
            assert count_tokens(sample.prompt) + sample.max_new_tokens == row["length"]


def compare(file: Path, count_tokens: Callable[[str], int], **fields) -> None:
    era, context_length = file.parent.name.removeprefix("era").split("_")
    rows = rows_of(file)
    task = make(file.stem, context_length=int(context_length), era=era, **fields)
    check(list(task.generate(count_tokens, range(len(rows)))), rows, count_tokens)


@pytest.mark.parametrize("name", OWN)
def test_prompts_are_the_official_ones(name: str, count_tokens):
    compare(GOLDEN / name, count_tokens)


@pytest.mark.parametrize("name", ESSAYS)
def test_essay_prompts_are_the_official_ones_with_the_same_sentences(name: str, shared: Path, count_tokens):
    """The official code ran with Punkt without its English parameters."""
    compare(shared / "data" / "ruler_pinned" / name, count_tokens, splitter="bare", root=str(shared / "data"))


def test_the_example_of_the_published_rows_is_the_row_that_it_says(shared: Path):
    """The first one of the official generator of 2024."""
    row = rows_of(shared / "data" / "ruler_pinned" / "era2024_4096" / "niah_multiquery.jsonl")[0]
    example = str(published.__doc__)
    assert json.loads(re.search(r"^ *answer +(\[.*\])$", example, re.MULTILINE)[1]) == row["outputs"]
    assert "official generator of\n2024" in example and "no row of the data set" in example


def test_every_given_file_is_compared(shared: Path):
    """Rows of qa_1 and qa_2 are in test_qa.py."""
    given = [path for root in ("golden", "data") for path in (shared / root / "ruler_pinned").glob("era*/*.jsonl")]
    assert {f"{path.parent.name}/{path.name}" for path in given} == {*OWN, *ESSAYS}


def test_all_500_published_rows_by_their_hash():
    """That of the published inputs, joined by newlines."""
    task = make("niah_multikey_3", context_length=4096, era="2024", samples=500)
    inputs = "\n".join(sample.prompt for sample in task.generate(lambda text: len(text) // 2, range(500)))
    digest = hashlib.sha256(inputs.encode()).hexdigest()
    assert digest == "af0d05976521e6967e87a2e9efd8f4f201729e5ea0c753f7f80662d98d4900a7"
