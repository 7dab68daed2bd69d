"""Prompts with answers that are values of Python, as a file of JSON lines for the task `jsonl`.

The file lies beside the rows and is named by its contents: the same prompts are the same cells.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.notebook.words import words_of
from kvbench.records.folder import replacing
from kvbench.support.errors import UserError

FIELDS = ("context", "question", "answers", "messages")
FORM = (
    'allowed: a pair (prompt, answer), or a dict {"context": TEXT, "question": TEXT, "answers": [TEXT]} or '
    '{"messages": [...], "answers": [TEXT]}'
)

Prompts = str | pandas.DataFrame | Sequence[Any]
"""The name of a task, or prompts: pairs (prompt, answer), dicts as in a file of `jsonl`, or a frame with such columns;
an answer is a text or a list of texts."""


def task_words(data: Prompts, arguments: Sequence[str]) -> list[str]:
    """Return the words that choose the task of `data`; prompts are written to the folder of results of these arguments.

    Raises UserError for prompts that cannot be read, and beside a task.
    """
    settings = parse(arguments)
    if named := [setting for setting in settings if setting.key in ("task", "task.path")]:
        raise UserError(f"{named[0].text} and data= both say what is read: leave one of them out")
    if isinstance(data, str):
        return [f"task={data}"]
    lines = list(_lines(data))
    if not lines:
        raise UserError(f"data holds no prompts; each of them is {FORM.removeprefix('allowed: ')}")
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    (tree,) = combinations([setting for setting in settings if setting.root == "results"])
    folder = Path(tree["results"]["dir"]).expanduser() / "data"
    file = folder / f"prompts-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(file) as new:
            new.write_text(text, encoding="utf-8")
    samples = [] if any(setting.key == "task.samples" for setting in settings) else [f"task.samples={len(lines)}"]
    return ["task=jsonl", *words_of({"task.path": file}), *samples]


def _lines(data: pandas.DataFrame | Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the prompts as lines of the file. Raises UserError."""
    rows = data.to_dict("records") if isinstance(data, pandas.DataFrame) else data
    if isinstance(rows, Mapping) or not isinstance(rows, Sequence):
        raise UserError(f"data={type(data).__name__}: allowed: the name of a task, a list of prompts, or a DataFrame")
    for number, row in enumerate(rows):
        if isinstance(row, (tuple, list)) and len(row) == 2:
            row = {"context": row[0], "answers": row[1]}
        if not isinstance(row, Mapping):
            raise UserError(f"data[{number}] is a {type(row).__name__} without an answer; {FORM}")
        line = {str(key): value for key, value in row.items() if not _is_blank(value)}
        if unknown := [key for key in line if key not in FIELDS]:
            raise UserError(f"data[{number}] has {unknown[0]!r}; {FORM}")
        answers = line.get("answers")
        answers = [answers] if isinstance(answers, str) else answers
        if not isinstance(answers, (list, tuple)) or not answers or not all(isinstance(text, str) for text in answers):
            raise UserError(f"data[{number}] has answers={answers!r}: a text or a list of texts; {FORM}")
        if "messages" not in line and not (isinstance(line.get("context"), str) and line["context"].strip()):
            raise UserError(f"data[{number}] has context={line.get('context')!r}: a text; {FORM}")
        if not isinstance(line.get("question", ""), str):
            raise UserError(f"data[{number}] has question={line['question']!r}: a text; {FORM}")
        yield line | {"answers": list(answers)}


def _is_blank(value: Any) -> bool:
    """Return whether a frame has no value there."""
    return value is None or (isinstance(value, float) and value != value)
