"""InfiniteBench laid out with templates of our own: all fields, and nothing of the benchmark's words."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.tasks.infinitebench import MEMBERS

PLAIN = "Read {context} then {input} So"
TEMPLATES = {member: PLAIN for member in MEMBERS} | {
    "longbook_sum_eng": "Read {context} So",
    "longbook_qa_chn": "读 {context} 问 {question} 答",
    "longbook_choice_eng": "Read {context} then {question} A {OPTION_A} B {OPTION_B} C {OPTION_C} D {OPTION_D} So",
    "code_debug": "Read {context} A {OPTION_A} B {OPTION_B} C {OPTION_C} D {OPTION_D} So",
    "code_run": "Look for ${func} in {context} what is {func_call}",
    "math_find": "{prefix} {context} {input}",
    "math_calc": "Sum {context} is",
}
INPUTS = {"code_run": "Value of func_12(-3). Go.", "math_find": "One word. The second largest number of the list is: "}
ANSWERS: dict[str, Any] = {
    "passkey": ["71432"],
    "number_string": "71432",
    "longdialogue_qa_eng": ["X", "Xy"],
    "math_calc": "[1, -2]",
    "math_find": [88.5],
    "code_run": [4],
    "longbook_choice_eng": ["two"],
    "code_debug": ["two"],
}


def row(member: str, **fields: Any) -> dict[str, Any]:
    """A row of a task in the published schema."""
    given = {"id": 0, "context": "a {b} {0} text", "input": INPUTS.get(member, "Which?")}
    given |= {"answer": ANSWERS.get(member, ["x"]), "options": ["one", "two", "three", "four"]}
    return given | fields


def write(root: Path, member: str, *rows: dict[str, Any]) -> None:
    """A file of rows."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (root / "infinitebench" / f"{member}.jsonl").write_text(lines, "utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with templates, and two rows a task."""
    (tmp_path / "infinitebench").mkdir()
    tables = {"yarn_mistral_templates": TEMPLATES, "gpt4_templates": TEMPLATES}
    (tmp_path / "infinitebench" / "prompts.json").write_text(json.dumps(tables), "utf-8")
    for member in MEMBERS:
        write(tmp_path, member, row(member), row(member, context="other"))
    return tmp_path


def make(name: str, root: Path | str, **fields: Any) -> Any:
    """The task of conf/task/NAME.yaml, some of its fields replaced."""
    return task_of(name, str(root), **fields)


class Words:
    """A tokenizer of one token a word."""

    def __call__(self, text: str, /) -> int:
        return len(text.split())
