"""Golden prompts: generated ones as text that can be read, those of third-party rows by their hash."""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.task import Sample

GOLDEN = Path(__file__).parents[1] / "golden"
READABLE = GOLDEN / "prompts"
GENERATED = sorted(path.relative_to(READABLE).with_suffix("").as_posix() for path in READABLE.glob("**/*.txt"))
HASHES = json.loads((GOLDEN / "longbench" / "prompt_sha256.json").read_text("utf-8"))
LENGTHS = {"ruler/niah_single_1": 512, "ruler/niah_multikey_2": 512, "ruler/fwe": 512}
CUT = "\n=== what follows is read after the cut, if schedule.evict_after=context ===\n"
PREFIX = "\n=== the answer begins with ===\n"
ANSWERS = "\n=== right answers ===\n"


@cache
def tokens() -> TokensOf:
    return TokensOf(AutoTokenizer.from_pretrained(GOLDEN / "ruler" / "tokenizer"))


def samples(task: Any, many: int) -> Iterator[Sample]:
    """The first samples of a task, none of them spoilt."""
    for sample in task.generate(tokens(), range(many)):
        assert isinstance(sample, Sample), sample
        yield sample


def readable(name: str) -> str:
    """The first prompt of a generated task, in its parts."""
    (sample,) = samples(task_of(name, None, samples=1, context_length=LENGTHS.get(name, 1024)), 1)
    answers = "\n".join(sample.references)
    return f"{sample.context}{CUT}{sample.question}{PREFIX}{sample.answer_prefix}{ANSWERS}{answers}\n"


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_prompt_reads_as_written_down(name: str):
    assert readable(name) == (READABLE / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("name", HASHES)
def test_prompts_of_third_party_rows_have_their_hashes(name: str, shared: Path):
    generated_samples = samples(task_of(name, str(shared / "data")), len(HASHES[name]))
    assert [hashlib.sha256(sample.prompt.encode()).hexdigest() for sample in generated_samples] == HASHES[name]
