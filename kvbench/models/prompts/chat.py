"""Chat templates: the text that a model's tokenizer puts around a user's turn.

Templates that print the current date print `TODAY` instead, so that a prompt does not depend on the day.
"""

import re
import weakref
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

from kvbench.models.loading.spec import Chat
from kvbench.support.bounded import BoundedChild, Limits
from kvbench.support.errors import OverLimit, UserError

TODAY = date(2024, 7, 26)
"""The default date in the templates of Llama 3."""

LIMITS = Limits(seconds=10, bytes=2**31)
"""What a template may take for one conversation. Its text may be GROWTH times as long, and MORE characters longer."""
GROWTH, MORE = 16, 2**20
Turns = Sequence[tuple[str, str]]
"""Earlier turns of a conversation: role and text."""
LONG: Turns = (("user", "A few words. "), ("assistant", "Others. ")) * 50
OWN = ("messages", "tools", "documents", "add_generation_prompt", "tokenize", "chat_template", "date_string")
"""Arguments of a template that say what the prompt says."""
CONTENT = "kvbench\x1fcontent"
"""Placeholder for the user's text, to find the head and tail of a template."""


def give_arguments(tokenizer: Any, arguments: Mapping[str, Any]) -> None:
    """Make the tokenizer render its template with arguments, such as `enable_thinking=False` for Qwen3.

    Raises UserError without a template, and for an argument that it does not read.
    """
    if not arguments:
        return
    names = ", ".join(arguments)
    if not tokenizer.chat_template:
        raise UserError(f"model.template_kwargs names {names}, but the tokenizer has no chat template: use auto")
    for name in arguments:
        if name in OWN or not re.search(rf"\b{re.escape(name)}\b", tokenizer.get_chat_template()):
            raise UserError(
                f"model.template_kwargs names {name}, which is no variable of the model's chat template: name one that "
                "it reads, such as enable_thinking of Qwen3, or use auto"
            )
    tokenizer.apply_chat_template = partial(tokenizer.apply_chat_template, **arguments)


def check_chat(tokenizer: Any, chat: Chat, system: str | None) -> None:
    """Raise UserError for a required template that is missing, or a system prompt that cannot be used."""
    templated = uses_template(tokenizer, chat)
    if chat == "required" and not templated:
        raise UserError("model.chat=required, but the tokenizer has no chat template: use model.chat=auto or never")
    if templated and not _shows_user_turn(tokenizer):
        raise UserError("the model's chat template leaves out what the user says: use model.chat=never")
    if system is None:
        return
    if not templated:
        why = "model.chat=never" if chat == "never" else "the tokenizer has no chat template"
        raise UserError(f"model.system is set, but a raw prompt has no system turn ({why}): use model.system=null")
    if system.strip() not in render(tokenizer, system, CONTENT):
        raise UserError("model.system is set, but the model's chat template leaves it out: use model.system=null")


def _shows_user_turn(tokenizer: Any) -> bool:
    """Return whether a template says what the user does, in whatever case; one that fails names its error with each
    prompt.
    """
    try:
        return CONTENT.casefold() in render(tokenizer, None, CONTENT).casefold()
    except UserError:
        return True


def check_ends(tokenizer: Any, system: str | None, where: str) -> None:
    """Raise OverLimit before a run for a template that goes over a limit for one turn, or for 101 long ones."""
    for words, before in ((200, ()), (10_000, LONG)):
        try:
            render(tokenizer, system, "A few words. " * words, before)
        except OverLimit as error:
            raise OverLimit(f"{where}: {error}") from None
        except UserError:  # other turns may do: what is refused is named where it is rendered
            continue


def uses_template(tokenizer: Any, chat: Chat, of_task: bool = True) -> bool:
    """Return whether a prompt goes inside the tokenizer's chat template; `of_task` is False if the protocol sends raw
    prompts.

    Raises UserError if that contradicts `required`.
    """
    if chat == "required" and not of_task:
        raise UserError(
            "model.chat=required, but task.chat=false: the task's protocol sends raw prompts; use model.chat=auto, or "
            "task.chat=true to leave the protocol"
        )
    return of_task and chat != "never" and bool(tokenizer.chat_template)


def render(tokenizer: Any, system: str | None, content: str, earlier_turns: Turns = ()) -> str:
    """Return the text of a system turn, if any, of the turns `earlier_turns`, and of a user's turn up to the answer.

    Raises UserError if the template does, and for two system turns.
    """
    turns = [{"role": "system", "content": system}] if system is not None else []
    if system is not None and earlier_turns and earlier_turns[0][0] == "system":
        raise UserError("model.system is set, and the messages begin with a system turn: use model.system=null")
    turns += [{"role": role, "content": text} for role, text in (*earlier_turns, ("user", content))]
    return render_turns(tokenizer, turns)


def render_turns(
    tokenizer: Any, turns: Sequence[Mapping[str, Any]], answers: bool = True, tools: Sequence[Any] | None = None
) -> str:
    """Return the text of turns in the form of transformers, up to an answer if `answers`. Raises UserError if a
    template does.

    Raises OverLimit for a template that takes more than `LIMITS`: one of others may hold loops in loops, and tell the
    turns of a trial from turns of a task. A child of this process renders it.
    """
    length = sum(len(str(value)) for turn in turns for value in turn.values()) + len(str(tools))
    try:
        return _child(tokenizer).call(
            partial(_render_turns, tokenizer), turns, answers, tools, most=GROWTH * length + MORE
        )
    except OverLimit as error:
        raise OverLimit(
            f"the model's chat template takes more than {error}, for {len(turns)} turns of {length:,} characters, "
            "probably because of nested loops: use model.chat=never, or fix the template"
        ) from None


_children: weakref.WeakKeyDictionary[Any, tuple[Any, BoundedChild]] = weakref.WeakKeyDictionary()
"""For each tokenizer what its child knows of it, and the child."""


def _child(tokenizer: Any) -> BoundedChild:
    """Return the child that renders the template of a tokenizer as it is now."""
    settings = getattr(tokenizer.apply_chat_template, "keywords", None)
    known = (tokenizer.chat_template, settings, getattr(tokenizer, "special_tokens_map", None), LIMITS)
    if tokenizer not in _children or _children[tokenizer][0] != known:
        child = BoundedChild(LIMITS)
        weakref.finalize(tokenizer, child.close)
        _children[tokenizer] = known, child
    return _children[tokenizer][1]


def _render_turns(
    tokenizer: Any, turns: Sequence[Mapping[str, Any]], answers: bool, tools: Sequence[Any] | None
) -> str:
    """Return the text of turns, without limits.

    Where a template leaves out the text of the last turn, it gets the parts of a text that templates of vision models
    read.
    """
    from jinja2 import TemplateError

    try:
        template = template_of(tokenizer, tools)
        if "strftime_now" in template:  # transformers has no option for another function
            parts = "".join(f'| replace("%{letter}", "{TODAY.strftime("%" + letter)}")' for letter in "aAbBdmyYjeHIMSp")
            template = "{%- macro strftime_now(form) -%}{{ form " + parts + " }}{%- endmacro -%}" + template
        options = {"chat_template": template, "date_string": TODAY.strftime("%d %b %Y")}
        options |= {} if tools is None else {"tools": tools}
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=answers, **options)
        if str(turns[-1]["content"]).strip() in text or "type" not in template:
            return text
        parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]  # vision models
        return tokenizer.apply_chat_template(parts, tokenize=False, add_generation_prompt=answers, **options)
    except MemoryError:
        raise
    except Exception as error:  # a template of others raises anything: TypeError, OverflowError, RecursionError
        turn = "model.system: " if turns[0]["role"] == "system" else ""
        reason = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{turn}the model's chat template refuses: {reason}") from error


def template_of(tokenizer: Any, tools: Sequence[Any] | None) -> str:
    """Return the chat template; that for tools, where a tokenizer has several and there are tools."""
    return tokenizer.get_chat_template(tools=tools) if tools else tokenizer.get_chat_template()


def around(tokenizer: Any, system: str | None, before: Turns = ()) -> tuple[str, str]:
    """Return the text that a template puts before and after the user's text."""
    head, _, tail = render(tokenizer, system, CONTENT, before).partition(CONTENT)
    return head, tail


def after_answer(tokenizer: Any, system: str | None, question: str) -> str:
    """Return the text that a template puts between an answer and the next one, with the next question in it.

    Raises UserError for a template that rewrites earlier turns when a later one follows.
    """
    first_question = "A question."
    text = render(tokenizer, system, question, (("user", first_question), ("assistant", CONTENT)))
    before, answer, after = text.partition(CONTENT)
    if (
        not answer
        or not before.startswith(around(tokenizer, system)[0] + first_question)
        or question.strip() not in after
    ):
        raise UserError(
            "task.turns: the model's chat template rewrites earlier turns, so that the cache of one turn does not "
            "begin the next; use task.turns=none or model.chat=never"
        )
    return after


def split(tokenizer: Any, system: str | None, context: str, question: str, before: Turns = ()) -> tuple[str, str]:
    """Return a rendered turn in two parts: up to the end of the context, and from the question on.

    A template may strip white space at both ends of the user's text. Raises UserError for one that changes more.
    """
    content = context + question
    text = render(tokenizer, system, content, before)
    head, tail = around(tokenizer, system, before)
    lead = len(content) - len(content.lstrip())
    for kept, dropped in ((content, 0), (content.rstrip(), 0), (content.lstrip(), lead), (content.strip(), lead)):
        if text == head + kept + tail:
            border = len(head) + min(max(0, len(context) - dropped), len(kept))
            return text[:border], text[border:]
    raise UserError(
        "schedule.evict_after=context: the model's chat template rewrites the prompt, so that context and question "
        "cannot be told apart; use schedule.evict_after=prompt or model.chat=never"
    )


def wrap(tokenizer: Any, system: str | None, context: str, question: str, before: Turns = ()) -> tuple[str, str]:
    """Return a turn in two parts as kvpress has them: the template around the context, then the question."""
    head, _, tail = render(tokenizer, system, context + CONTENT, before).partition(CONTENT)
    return head, question + tail
