"""A prompt template of InfiniteBench as what stands before the context's end and what comes after.

The literals of the benchmark's src/prompt.py lie in data.root/infinitebench/prompts.json: a table of twelve templates
for each kind of model (`yarn_mistral_templates`, `gpt4_templates`, ...). They are filled as text: what a context holds
in braces stays as it is.
"""

import json

from kvbench.support.errors import UserError
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
        raise UserError(f"{path} is no JSON in UTF-8: {error}") from None
    tables = tables if isinstance(tables, dict) else {}
    texts = tables.get(name)
    if not isinstance(texts, dict) or not isinstance(texts.get(member), str):
        legal = ", ".join(sorted(one.removesuffix("_templates") for one in tables if one.endswith("_templates")))
        raise UserError(f"{path} has no {name} with {member}: task.templates is one of {legal or 'none'}")
    return texts[member]
