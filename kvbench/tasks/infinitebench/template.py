"""A prompt template of InfiniteBench as what stands before the context's end and what comes after.

The literals of the benchmark's src/prompt.py lie in data.root/infinitebench/prompts.json: a table of twelve templates
for each kind of model (`yarn_mistral_templates`, `gpt4_templates`, ...). They are filled as text: what a context holds
in braces stays as it is.
"""

import json
from collections.abc import Mapping
from string import Formatter

from kvbench.tasks.files import find

FILE = "infinitebench/prompts.json"


def template(root: str | None, table: str, member: str) -> str:
    """The template of a task.

    Raises:
        ValueError: the file is no table of templates or lacks this one.
        FileNotFoundError: the file is not under `data.root`.
    """
    path, name = find(root, FILE), f"{table}_templates"
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON in UTF-8: {error}") from None
    tables = tables if isinstance(tables, dict) else {}
    texts = tables.get(name)
    if not isinstance(texts, dict) or not isinstance(texts.get(member), str):
        legal = ", ".join(sorted(one.removesuffix("_templates") for one in tables if one.endswith("_templates")))
        raise ValueError(f"{path} has no {name} with {member}: task.templates is one of {legal or 'none'}")
    return texts[member]


def filled(text: str, fields: Mapping[str, str]) -> tuple[str, str]:
    """The template with its fields: up to and with the context, and what comes after it.

    Raises ValueError for a template without `{context}`, with a field that no row has, or with a stray brace.
    """
    sides, at = ["", ""], 0
    try:
        for literal, field, form, conversion in Formatter().parse(text):
            sides[at] += literal
            if field is None:
                continue
            if field not in fields or form or conversion:
                raise ValueError(f"the template asks for {{{field}}}; a row fills {', '.join(fields)}")
            sides[at] += fields[field]
            at = 1 if field == "context" else at
    except ValueError as error:
        raise ValueError(f"{FILE}: {error}") from None
    if not at:
        raise ValueError(f"{FILE}: the template has no {{context}}")
    return sides[0], sides[1]
