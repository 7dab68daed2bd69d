"""MATH-500 and AIME: problems, prompts and rows that are none. The prompt of R-KV is formatted as its script does."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.extras.math.math_problems import MathProblems
from kvbench.tasks.task import InvalidSample, Sample
from tests.tasks.longbench.test_task import NoTokens

PROBLEM = r"What is $\frac{a}{b}$ of {3}?"


def task(root: Path, *rows: Any, name: str = "math500", **fields: Any) -> MathProblems:
    file = root / {"math500": "math500/test.jsonl", "aime24": "aime/2024.jsonl", "aime25": "aime/2025.jsonl"}[name]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    math_task: Any = task_of(name, str(root), **fields)
    return math_task


def only(math_task: MathProblems) -> Sample | InvalidSample:
    (sample,) = math_task.generate(NoTokens(), [0])
    return sample


def test_the_prompt_of_rkv(tmp_path: Path) -> None:
    official = "You are given a math problem.\n\nProblem: {question}\n\n You need to solve the problem step by step. "
    official += "First, you need to provide the chain-of-thought, then provide the final answer.\n\n Provide the final "
    official += "answer in the format: Final answer:  \\boxed{{}}"
    sample = only(task(tmp_path, {"problem": PROBLEM, "answer": "7"}, prompt="rkv", chat=False))
    assert isinstance(sample, Sample) and sample.prompt == official.format(question=PROBLEM)


def test_whole_numbers_are_answers_too(tmp_path: Path) -> None:
    math_task = task(tmp_path, {"problem": PROBLEM, "answer": 25}, name="aime24")
    sample = only(math_task)
    assert isinstance(sample, Sample) and sample.references == ("25",) and math_task.score(r"\boxed{025}", sample) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": " ", "answer": "7"}, "its problem is empty"),
        ({"answer": "7"}, "it has no problem, only answer"),
        ({"problem": PROBLEM, "answer": 0.5}, "its answer is '0.5': a text or a whole number"),
        ({"problem": PROBLEM, "answer": True}, "its answer is 'True': a text or a whole number"),
        ({"problem": PROBLEM, "answer": " "}, "its answer is ' ': a text or a whole number"),
    ],
)
def test_an_invalid_row_is_named(row: Any, message: str, tmp_path: Path) -> None:
    sample = only(task(tmp_path, row))
    assert isinstance(sample, InvalidSample) and sample.error == f"math500/test.jsonl:1: {message}"


def test_an_unknown_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"task.prompt=cot: allowed: 'boxed' or 'rkv'"):
        task(tmp_path, prompt="cot")


def test_every_reference_of_math500_equals_itself() -> None:
    """The count that kvpress' grader misses: 500 of 500."""
    root = os.environ.get("KVBENCH_DATA")
    if root is None or not Path(root, "math500", "test.jsonl").is_file():
        pytest.skip("KVBENCH_DATA names no folder with math500/test.jsonl (kvbench data pull math500)")
    math_task: Any = task_of("math500", root, samples=500)
    samples = [sample for sample in math_task.generate(NoTokens(), range(500)) if isinstance(sample, Sample)]
    assert sum(math_task.score(f"so \\boxed{{{sample.references[0]}}}", sample) for sample in samples) == 500
