"""What LongBench says about its tasks: prompt templates and lengths of answers, under data.root/longbench/config."""

import json
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import find

PROMPTS = "longbench/config/dataset2prompt.json"
LENGTHS = "longbench/config/dataset2maxlen.json"


def template(root: str | None, member: str) -> str:
    """The prompt template of a task, with the fields `context` and, in most, `input`.

    Raises ValueError for a file without it and FileNotFoundError without the file.
    """
    return _entry(root, PROMPTS, member, str, "template")


def new_tokens(root: str | None, member: str) -> int:
    """How many tokens an answer to a task may have. Raises as `template` does."""
    tokens = _entry(root, LENGTHS, member, int, "length")
    if tokens < 1:
        raise UserError(f"{find(root, LENGTHS)} has the length {tokens} for {member}: at least 1")
    return tokens


def _entry(root: str | None, file: str, member: str, kind: type, what: str) -> Any:
    path = find(root, file)
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON in UTF-8: {error}") from None
    value = table.get(member) if isinstance(table, dict) else None
    if type(value) is not kind:
        raise UserError(f"{path} has no {what} for {member}")
    return value
