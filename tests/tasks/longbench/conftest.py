"""LongBench laid out with templates and rows of our own: all fields, and nothing of the benchmark's words."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.conformance.golden.prompts import task_of
from kvbench.tasks.longbench import MEMBERS, LongBenchTask

WITHOUT_INPUT = ("gov_report", "multi_news", "vcsum", "passage_count", "lcc")
ANSWERS = {"passage_retrieval_en": "Paragraph 3", "passage_retrieval_zh": "段落3", "passage_count": "3", "trec": "Date"}


def row(member: str = "qasper", **fields: Any) -> dict[str, Any]:
    """A row of a task in the published schema; `fields` replace its own, None among them."""
    classes = ["Date", "Food"] if member in ("trec", "lsht") else None
    given: dict[str, Any] = {"input": "Which?", "context": "a {b} {0} {input} text", "length": 100}
    given |= {"answers": [ANSWERS.get(member, "Date")], "all_classes": classes}
    return given | {"dataset": member, "language": "en", "_id": "0"} | fields


def write(root: Path, member: str, *rows: dict[str, Any]) -> None:
    """A file of rows."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (root / "longbench" / f"{member}.jsonl").write_text(lines, "utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for `data.root` with templates and lengths and no rows."""
    config = tmp_path / "longbench" / "config"
    config.mkdir(parents=True)
    prompts = {m: "Read {context} so" if m in WITHOUT_INPUT else "Read {context} then {input} so" for m in MEMBERS}
    (config / "dataset2prompt.json").write_text(json.dumps(prompts))
    (config / "dataset2maxlen.json").write_text(json.dumps(dict.fromkeys(MEMBERS, 16)))
    return tmp_path


def task(root: Path, name: str = "longbench/qasper", **fields: Any) -> LongBenchTask:
    """The task of a file in conf/task with other settings."""
    longbench_task = task_of(name, str(root), **fields)
    assert isinstance(longbench_task, LongBenchTask)
    return longbench_task
