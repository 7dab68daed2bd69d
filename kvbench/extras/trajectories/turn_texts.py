"""The text of a recorded run of an agent as a model reads it, divided where its turns end."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from kvbench.extras.trajectories.trajectory import Call, Message, TrajectorySample, plain_text, plain_turns
from kvbench.models.prompts.build import TurnTexts
from kvbench.models.prompts.chat import CONTENT, render_turns, template_of
from kvbench.support.errors import UserError

Show = Callable[[Sequence[Message], bool], str]
"""The text of messages, up to the assistant's next words if the second argument is true."""


def turn_texts(tokenizer: Any, templated: bool, system: str | None, sample: TrajectorySample) -> TurnTexts:
    """Return the texts of a run whose last message is the recorded answer.

    Calls, outputs and tools go through the tokenizer's chat template if that reads `tools` and `tool_calls`, else as
    the words of `plain_turns`. Raises UserError for a template that refuses or rewrites them.
    """
    run = sample.trajectory
    show = _show(tokenizer, system, run.tools) if templated else _show_plainly(run.tools)
    *history, recorded = run.messages
    text, borders = show(history, True), [0]
    for place in run.answers[:-1]:
        answer, closing = _answer(show, history[:place], history[place])
        start = text.find(answer + closing, max(borders[-1], _end_of(show(history[:place], False), text)))
        if start < 0:
            raise UserError(
                f"the model's chat template rewrites message {place} when later ones follow, so that the end of its "
                "turn is not known; use model.chat=never"
            )
        borders.append(start + len(answer + closing))
    first = next(place for place, message in enumerate(history) if message.role == "user")
    opening = show((*history[:first], Message("user", CONTENT)), False).partition(CONTENT)[0]
    head, last = text.find(history[first].content.strip(), _end_of(opening, text)), history[-1].text.strip()
    return TurnTexts(
        turns=tuple(text[start:end] for start, end in pairwise((*borders, len(text)))),
        answer=_answer(show, history, recorded)[0],
        head=text[: max(0, head)],
        tail=text[text.rindex(last) + len(last) :] if last in text else "",
    )


def _end_of(beginning: str, text: str) -> int:
    """Return the length of the beginning of a text, which may hold the words that follow it too; 0 if the text has
    another.
    """
    return len(beginning) if text.startswith(beginning) else 0


def _answer(show: Show, before: Sequence[Message], answer: Message) -> tuple[str, str]:
    """Return how a message of the assistant is written after the beginning of its turn, and what ends the turn."""
    head, mark, closing = show((*before, Message("assistant", CONTENT)), False).partition(CONTENT)
    text, opening = show((*before, answer), False), show(before, True)
    head = opening if text.startswith(opening) else head  # a template may begin an answer with an empty thought
    if not mark or not text.startswith(head) or not text.endswith(closing):
        raise UserError(
            f"the model's chat template writes message {len(before)}, a tool call, unlike other answers, so that its "
            "text is not known; use model.chat=never"
        )
    return text[len(head) : len(text) - len(closing)], closing


def _show_plainly(tools: str) -> Show:
    def show(messages: Sequence[Message], answers: bool) -> str:
        return plain_text(plain_turns(messages, tools)) + ("Assistant:" if answers else "")

    return show


def _show(tokenizer: Any, system: str | None, tools: str) -> Show:
    listed = json.loads(tools) or None
    template = template_of(tokenizer, listed)
    reads = all(re.search(rf"\b{name}\b", template) for name in ("tools", "tool_calls"))
    opening = [{"role": "system", "content": system}] if system is not None else []

    def show(messages: Sequence[Message], answers: bool) -> str:
        if system is not None and messages[0].role == "system":
            raise UserError("model.system is set, and the messages begin with a system turn: use model.system=null")
        if reads:
            return render_turns(tokenizer, [*opening, *_turns(messages)], answers, listed)
        turns = [{"role": role, "content": text} for role, text in plain_turns(messages, tools)]
        return render_turns(tokenizer, [*opening, *turns], answers)

    return show


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in the form of transformers. Calls are numbered in nine letters, as the templates of Mistral ask."""
    turns, called = list[dict[str, Any]](), list[tuple[str, str]]()
    for number, message in enumerate(messages):
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            called = [(f"call{number:03d}{place:02d}", call.name) for place, call in enumerate(message.calls)]
            calls = zip(called, message.calls, strict=True)
            turn["tool_calls"] = [_function(name, call) for (name, _), call in calls]
        elif message.role == "tool" and called:
            turn["tool_call_id"], turn["name"] = called.pop(0)
        turns.append(turn)
    return turns


def _function(identity: str, call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"type": "function", "id": identity, "function": function}
