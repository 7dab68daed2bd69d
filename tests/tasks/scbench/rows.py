"""Rows of SCBench, SQuAD and GSM8K in the published schemas, with words of our own."""

import json
from pathlib import Path
from typing import Any

from kvbench.extras.conformance.golden.prompts import task_of

ADD, SUB = "def add(a, b):\n    return a + b", "def sub(a, b):\n    return a - b"
ANSWERS: dict[str, list[Any]] = {
    "kv": ["9c02", "77aa"],
    "prefix_suffix": ["abcd", "efgh"],
    "vt": [["AB", "XY"], ["QQ"]],
    "repoqa": [ADD, SUB],
    "qa_eng": ["a red fox", "twice"],
    "choice_eng": ["Blue", "Red"],
    "many_shot": ["A", "B"],
    "mf": [7, 2.5],
    "summary": ["red fox", "red dog"],
    "summary_with_needles": ["red fox", "71432"],
    "repoqa_and_kv": [ADD, "77aa"],
}
RIGHT = {
    member: [", ".join(a) if isinstance(a, list) else str(a) for a in answers] for member, answers in ANSWERS.items()
}
RIGHT["many_shot"] = ["(A)", "(B)"]
KINDS = {
    "summary_with_needles": ["scbench_summary", "scbench_passkey"],
    "repoqa_and_kv": ["scbench_repoqa", "scbench_kv"],
}


def row(member: str, **fields: Any) -> dict[str, Any]:
    """A context with two questions; `fields` replace its own."""
    options = "\n(A) blue\n(B) red\n" if member == "many_shot" else ""
    given: dict[str, Any] = {
        "prompts": ["Some {context} words", f"First?{options}", f" Second?{options}\n"],
        "ground_truth": ANSWERS[member],
    }
    if "repoqa" in member:
        given |= {"lang": "python", "repo": "a/b", "func_name": ["add", "sub"]}
    if member in KINDS:
        given["task"] = KINDS[member]
    return given | fields


def write(root: Path, name: str, *rows: Any) -> None:
    """A file of rows under data.root."""
    path = root / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in rows), "utf-8")


def make(root: Path, name: str, **fields: Any) -> Any:
    """The task of a file in conf/task with other settings."""
    return task_of(name, str(root), **fields)
