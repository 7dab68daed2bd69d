"""Chat templates: what a model's tokenizer puts around a user's turn.

A template that prints the date of today prints `TODAY`, so that a prompt does not depend on the day it is made.
"""

from datetime import date
from typing import Any

from kvbench.models.loading.spec import Chat
from kvbench.support.errors import UserError

TODAY = date(2024, 7, 26)
"""What the templates of Llama 3 say where they know no date."""

CONTENT = "kvbench\x1fcontent"
"""Stands for what a user says while head and tail of a template are looked for."""


def check_chat(tokenizer: Any, chat: Chat, system: str | None) -> None:
    """Raise ValueError for a template that is required and missing, or for a system prompt that has no place."""
    templated = uses_template(tokenizer, chat)
    if chat == "required" and not templated:
        raise UserError("model.chat=required, but the tokenizer has no chat template: use auto or never")
    if system is None:
        return
    if not templated:
        why = "model.chat=never" if chat == "never" else "the tokenizer has no chat template"
        raise UserError(f"model.system is set, but a raw prompt has no system turn ({why}): use model.system=null")
    if system.strip() not in render(tokenizer, system, CONTENT):
        raise UserError("model.system is set, but the model's chat template leaves it out: use model.system=null")


def uses_template(tokenizer: Any, chat: Chat, of_task: bool = True) -> bool:
    """Whether a prompt goes inside the tokenizer's chat template.

    `of_task` is False for a task whose protocol sends raw prompts. Raises ValueError where it contradicts `required`.
    """
    if chat == "required" and not of_task:
        raise UserError(
            "model.chat=required, but task.chat=false: the task's protocol sends raw prompts; use model.chat=auto, or "
            "task.chat=true to leave the protocol"
        )
    return of_task and chat != "never" and bool(tokenizer.chat_template)


def render(tokenizer: Any, system: str | None, content: str) -> str:
    """The text of a user's turn up to where the answer begins, after a system turn where there is a system prompt.

    Raises ValueError where the template refuses to be used so.
    """
    from jinja2 import TemplateError

    turns = [{"role": "system", "content": system}] if system is not None else []
    turns.append({"role": "user", "content": content})
    try:
        return tokenizer.apply_chat_template(
            turns,
            tokenize=False,
            add_generation_prompt=True,
            chat_template=_today(tokenizer.get_chat_template()),
            date_string=TODAY.strftime("%d %b %Y"),
        )
    except TemplateError as error:
        turn = "model.system: " if system is not None else ""
        raise UserError(f"{turn}the model's chat template refuses: {error}") from error


def around(tokenizer: Any, system: str | None) -> tuple[str, str]:
    """What a template puts before and behind a user's words."""
    head, _, tail = render(tokenizer, system, CONTENT).partition(CONTENT)
    return head, tail


def split(tokenizer: Any, system: str | None, context: str, question: str) -> tuple[str, str]:
    """A rendered turn in two: up to the end of the context, and from the question on.

    A template may strip white space at both ends of what it wraps. Raises ValueError for one that rewrites more: where
    its text came from could not be told.
    """
    content = context + question
    text = render(tokenizer, system, content)
    head, tail = around(tokenizer, system)
    lead = len(content) - len(content.lstrip())
    for kept, dropped in ((content, 0), (content.rstrip(), 0), (content.lstrip(), lead), (content.strip(), lead)):
        if text == head + kept + tail:
            border = len(head) + min(max(0, len(context) - dropped), len(kept))
            return text[:border], text[border:]
    raise UserError(
        "schedule.evict_after=context: the model's chat template rewrites the prompt, so that context and question "
        "cannot be told apart; use schedule.evict_after=prompt or model.chat=never"
    )


def _today(template: str) -> str:
    """A template whose function for the date of today says `TODAY`: transformers lets no other function be given."""
    if "strftime_now" not in template:
        return template
    parts = "".join(f'| replace("%{letter}", "{TODAY.strftime("%" + letter)}")' for letter in "aAbBdmyYjeHIMSp")
    return "{%- macro strftime_now(form) -%}{{ form " + parts + " }}{%- endmacro -%}" + template
