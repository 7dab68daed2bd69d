"""Recorded runs of an agent: messages with calls of tools and their outputs, turns, and the words of a plain chat.

A turn ends with a message of the assistant; between two turns a cache can be evicted from.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvbench.tasks.task import Sample

INSTRUCTION = (
    'Call one tool at a time. Answer with the call alone, as one line of JSON: {"name": TOOL, "arguments": {...}}'
)
"""How a chat without tools is told of them."""


@dataclass(frozen=True)
class Call:
    """A call of a tool; `arguments` are an object of JSON, as a text."""

    name: str
    arguments: str

    def __str__(self) -> str:
        return f'{{"name": {json.dumps(self.name, ensure_ascii=False)}, "arguments": {self.arguments}}}'


@dataclass(frozen=True)
class Message:
    """A message of a run. needs: the number of the message that holds what its calls need, if that is recorded."""

    role: str
    content: str = ""
    calls: tuple[Call, ...] = ()
    needs: int | None = None

    @property
    def text(self) -> str:
        """Text of the turn, with a line of JSON for each call."""
        return "\n".join(filter(None, (self.content, *map(str, self.calls))))


@dataclass(frozen=True)
class Trajectory:
    """A run, or its beginning. tools: a list of JSON, as a text, of what may be called."""

    messages: tuple[Message, ...]
    tools: str = "[]"

    @cached_property
    def answers(self) -> tuple[int, ...]:
        """The numbers of the assistant's messages, each of which ends a turn."""
        return tuple(place for place, message in enumerate(self.messages) if message.role == "assistant")

    def turn_of(self, message: int) -> int:
        """Return the turn, from 1, in which a message is read or written."""
        return 1 + sum(answer < message for answer in self.answers)

    @property
    def points(self) -> tuple[int, ...]:
        """The turns that end with a recorded call, without the first: nothing has been evicted before it."""
        answers = enumerate(self.answers, start=1)
        return tuple(turn for turn, place in answers if turn > 1 and self.messages[place].calls)

    def distance(self, turn: int) -> int | None:
        """Return how many turns have ended between what the calls of a turn need and these calls; None if it is
        unknown.
        """
        needs = self.messages[self.answers[turn - 1]].needs
        return None if needs is None else turn - self.turn_of(needs)

    def until(self, turn: int) -> "Trajectory":
        """Return the messages up to the end of a turn."""
        return Trajectory(self.messages[: self.answers[turn - 1] + 1], self.tools)

    @property
    def opening(self) -> str:
        """The beginning up to the second answer, the first that can be asked for, in plain words."""
        return plain_text(plain_turns(self.messages[: self.answers[1]], self.tools))


@dataclass(frozen=True, kw_only=True)
class TrajectorySample(Sample):
    """A call that is asked for. trajectory: the run up to it, its last message; it is read instead of context and
    question, which say the same to models without a chat template.
    """

    trajectory: Trajectory


def plain_turns(messages: Sequence[Message], tools: str) -> list[tuple[str, str]]:
    """Return a run as turns of user and assistant in turn, role and text, for a chat without tools.

    The system's words, tools and instruction come before the user's first words; outputs of tools are the user's.
    """
    listed = [json.dumps(tool, ensure_ascii=False) for tool in json.loads(tools)]
    before = [message.content for message in messages if message.role == "system"]
    before += ["\n".join(("Tools:", *listed, INSTRUCTION))] if listed else []
    turns: list[tuple[str, str]] = []
    for message in messages[messages[0].role == "system" :]:
        if message.role == "assistant":
            turns.append(("assistant", message.text))
            continue
        text = f"Output of the tool:\n{message.text}" if message.role == "tool" else message.text
        earlier = [turns.pop()[1]] if turns and turns[-1][0] == "user" else before if not turns else []
        turns.append(("user", "\n\n".join((*earlier, text))))
    return turns


def plain_text(turns: Sequence[tuple[str, str]]) -> str:
    """Return turns as a text for a model without a chat template; the assistant's next words follow it and a blank."""
    return "".join(f"{role.title()}: {text}\n\n" for role, text in turns)
