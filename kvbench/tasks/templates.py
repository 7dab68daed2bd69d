"""Prompt templates of benchmarks: JSON tables under `data.root`, filled as text, so braces in a context stay."""

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.files import find


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
                raise UserError(f"the template asks for {{{field}}}; a row has only {', '.join(fields)}")
            parts[at] += fields[field]
            at = 1 if field == "context" else at
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    if not at:
        raise UserError(f"{file}: the template has no {{context}}")
    return parts[0], parts[1]


def table(root: str | None, file: str) -> dict[str, Any]:
    """The object of a JSON file under `data.root`; empty for any other value. Raises UserError if it is not JSON."""
    path = find(root, file)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON in UTF-8: {error}") from None
    return content if isinstance(content, dict) else {}
