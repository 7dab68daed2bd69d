"""Prompt templates of benchmarks, filled as text: what a context holds in braces stays as it is."""

from collections.abc import Mapping
from string import Formatter

from kvbench.support.errors import UserError


def filled(template: str, fields: Mapping[str, str], file: str) -> tuple[str, str]:
    """The template with its fields: up to and with the context, and what comes after it. `file` is for messages.

    Raises ValueError for a template without `{context}`, with a field that no row has, or with a stray brace.
    """
    sides, at = ["", ""], 0
    try:
        for literal, field, form, conversion in Formatter().parse(template):
            sides[at] += literal
            if field is None:
                continue
            if field not in fields or form or conversion:
                raise UserError(f"the template asks for {{{field}}}; a row fills {', '.join(fields)}")
            sides[at] += fields[field]
            at = 1 if field == "context" else at
    except ValueError as error:
        raise UserError(f"{file}: {error}") from None
    if not at:
        raise UserError(f"{file}: the template has no {{context}}")
    return sides[0], sides[1]
