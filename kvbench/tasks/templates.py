"""Prompt templates of benchmarks: JSON tables under `data.root`, filled as text, so braces in a context stay.

LongBench has one table of templates and one of answer lengths; InfiniteBench has a table of twelve templates for each
kind of model (`yarn_mistral_templates`, `gpt4_templates`, ...), the literals of its src/prompt.py.
"""

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import find

LONGBENCH_PROMPTS = "longbench/config/dataset2prompt.json"
LONGBENCH_LENGTHS = "longbench/config/dataset2maxlen.json"
INFINITEBENCH_PROMPTS = "infinitebench/prompts.json"


def fill(template: str, fields: Mapping[str, str], file: str) -> tuple[str, str]:
    """The filled template in two parts: up to the end of the context, and the rest. `file` is for messages.

    Raises UserError for a template without `{context}`, with an unknown field, or with a stray brace.
    """
    parts, at = ["", ""], 0
    try:
        for literal, field, form, conversion in Formatter().parse(template):
            parts[at] += literal
            if field is None:
                continue
            if field not in fields or form or conversion:
                raise UserError(f"the template asks for {{{field}}}; a row fills {', '.join(fields)}")
            parts[at] += fields[field]
            at = 1 if field == "context" else at
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    if not at:
        raise UserError(f"{file}: the template has no {{context}}")
    return parts[0], parts[1]


def longbench_template(root: str | None, member: str) -> str:
    """The template of a LongBench task, with the field `context` and in most tasks `input`.

    Raises:
        UserError: the file is not a table or lacks the task.
        MissingFile: the file is not under `data.root`.
    """
    return _longbench(root, LONGBENCH_PROMPTS, member, str, "template")


def longbench_new_tokens(root: str | None, member: str) -> int:
    """The maximum number of answer tokens of a LongBench task. Raises as `longbench_template` does."""
    tokens = _longbench(root, LONGBENCH_LENGTHS, member, int, "length")
    if tokens < 1:
        raise UserError(f"{find(root, LONGBENCH_LENGTHS)} has the length {tokens} for {member}: at least 1")
    return tokens


def infinitebench_template(root: str | None, table: str, member: str) -> str:
    """The template of an InfiniteBench task in a table of its file. Raises as `longbench_template` does."""
    tables, name = _read(root, INFINITEBENCH_PROMPTS), f"{table}_templates"
    texts = tables.get(name)
    if not isinstance(texts, dict) or not isinstance(texts.get(member), str):
        allowed = ", ".join(sorted(key.removesuffix("_templates") for key in tables if key.endswith("_templates")))
        path = find(root, INFINITEBENCH_PROMPTS)
        raise UserError(f"{path} has no {name} with {member}: task.templates is one of {allowed or 'none'}")
    return texts[member]


def _longbench(root: str | None, file: str, member: str, kind: type, label: str) -> Any:
    value = _read(root, file).get(member)
    if type(value) is not kind:
        raise UserError(f"{find(root, file)} has no {label} for {member}")
    return value


def _read(root: str | None, file: str) -> dict[str, Any]:
    """The object of a JSON file; empty for any other JSON value."""
    path = find(root, file)
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON in UTF-8: {error}") from None
    return table if isinstance(table, dict) else {}
