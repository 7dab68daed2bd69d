"""The reasoning of an answer and its final part, told apart by the marks of the model.

<think>so 6 x 7 is</think>42                                                     a pair of marks around the reasoning
<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>42     a message per channel

A mark that is one token of the tokenizer is found by its id, since decoding may drop it. Others are found in the text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from kvbench.models.prompts.prompt import Prompt
from kvbench.tasks.task import Ending, Final, Reasoning, Sample

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
"""The marks of messages: https://cookbook.openai.com/articles/openai-harmony."""
ANALYSIS = "analysis"
"""The channel that is no part of what a user sees."""
SPELLED = re.compile(r"analysis(.*?)(?:assistantfinal(.*))?", re.DOTALL)
"""Messages of which a server has dropped the marks."""


class Part(NamedTuple):
    """A mark, and the text or token ids from there to the next one; the first part of an answer has no mark."""

    mark: str
    content: Any


class Split(NamedTuple):
    """Reasoning and answer of a text, in order. unended: the end is within the reasoning."""

    reasoning: list[Any]
    final: list[Any]
    unended: bool


@dataclass(frozen=True)
class Tags:
    """A pair of marks around each piece of reasoning."""

    opens: tuple[str, ...]
    closes: tuple[str, ...]

    @property
    def marks(self) -> tuple[str, ...]:
        return self.opens + self.closes

    def split(self, parts: Sequence[Part], read: Callable[[Any], str], inside: bool) -> Split:
        """Return an answer whose first mark closes was opened by its prompt."""
        reasoning, final = [], []
        inside = inside or (len(parts) > 1 and parts[1].mark in self.closes)
        for mark, content in parts:
            inside = mark in self.opens or (inside and mark not in self.closes)
            (reasoning if inside else final).append(content)
        return Split(reasoning, final, inside)

    def joined(self, reasoning: str, final: str | None) -> str:
        """Return an answer whose parts a server has told apart."""
        return f"{self.opens[0]}{reasoning}" + ("" if final is None else f"{self.closes[0]}{final}")


@dataclass(frozen=True)
class Channels:
    """Messages of several channels, of which `analysis` is the reasoning."""

    marks = (START, CHANNEL, MESSAGE, *ENDS)

    def split(self, parts: Sequence[Part], read: Callable[[Any], str], inside: bool) -> Split:
        """Return an answer that ends before its first message of another channel ends within the reasoning."""
        reasoning, final, name = [], [], ""
        for mark, content in parts:
            if mark == CHANNEL:
                name = "".join(read(content).split()[:1])
            if mark in (START, CHANNEL):
                inside = True  # a message has begun, and nothing of it is there
            elif mark == MESSAGE:
                inside, name = name == ANALYSIS, ""
            if mark in ("", MESSAGE):
                (reasoning if inside else final).append(content)
        return Split(reasoning, final, inside)

    def joined(self, reasoning: str, final: str | None) -> str:
        """Return an answer whose parts a server has told apart."""
        message = f"{CHANNEL}{ANALYSIS}{MESSAGE}{reasoning}"
        return message + ("" if final is None else f"{ENDS[0]}{START}assistant{CHANNEL}final{MESSAGE}{final}")


Marks = Tags | Channels
THINK = Tags(("<think>",), ("</think>",))
KNOWN: tuple[Marks, ...] = (
    Channels(),  # GPT-OSS
    THINK,  # DeepSeek-R1, Qwen3, QwQ, GLM-4.5, SmolLM3, Olmo 3, MiniMax, Granite 3.3
    Tags(("[THINK]",), ("[/THINK]",)),  # Magistral
    Tags(("<seed:think>",), ("</seed:think>",)),  # Seed-OSS
    Tags(("<thought>",), ("</thought>",)),  # EXAONE Deep
    Tags(("<|START_THINKING|>",), ("<|END_THINKING|>",)),  # Command A
    Tags(("<|inner_prefix|>",), ("<|inner_suffix|>",)),  # Apertus
    Tags(("<|channel>",), ("<channel|>",)),  # Gemma 4
    Tags(("\u25c1think\u25b7",), ("\u25c1/think\u25b7",)),  # Kimi-VL
)
"""The marks of models that reason before they answer."""
ANY = Tags(
    tuple(open for kind in KNOWN if isinstance(kind, Tags) for open in kind.opens),
    tuple(close for kind in KNOWN if isinstance(kind, Tags) for close in kind.closes),
)
"""What `task.reasoning=strip` searches for where the tokenizer knows no marks."""


def marks_of(tokenizer: Any, setting: Reasoning) -> Marks | None:
    """Return the marks by which answers are divided, with `task.reasoning`; None: they are not.

    A tokenizer knows marks that are tokens of it, and a pair of which its chat template names one.
    """
    if setting == "keep":
        return None
    template = str(tokenizer.chat_template or "")
    known = set(_ids(tokenizer, tuple(mark for marks in KNOWN for mark in marks.marks)).values())
    for marks in KNOWN:
        if (isinstance(marks, Tags) and any(mark in template for mark in marks.marks)) or known.issuperset(marks.marks):
            return marks
    return ANY if setting == "strip" else None


def turn_before(prompt: Prompt, sample: Sample, ended: Ending | None, is_raw: bool = True) -> tuple[int, ...]:
    """Return the tokens of the chat template that an answer continues, which may begin the reasoning.

    None for an answer that ended by itself after a prefix of the task, which has begun the answer, or where others may
    have taken the reasoning out (not `is_raw`).
    """
    return prompt.turn if ended == "limit" or (is_raw and not sample.answer_prefix) else ()


def final_of_ids(tokenizer: Any, setting: Reasoning, turn: Sequence[int], ids: Sequence[int], text: str) -> Final:
    """Return the final part of an answer of our own: its tokens without those that end it, and their text.

    turn: the tokens that may begin the reasoning.
    """
    marks = marks_of(tokenizer, setting)
    if marks is None:
        return Final(text)
    mark_ids = _ids(tokenizer, marks.marks)
    is_spelled = len(mark_ids) < len(marks.marks) or any(mark in text for mark in marks.marks)
    if isinstance(marks, Tags) and is_spelled and not any(token in mark_ids for token in ids):
        return final_of_text(tokenizer, setting, turn, text)

    def read(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=True)

    parts, opened = _parts_of_ids(ids, mark_ids), _opened(marks, _parts_of_ids(turn, mark_ids), read)
    if len(parts) == 1 and not opened:
        return Final(text, 0)
    reasoning, final, unended = marks.split(parts, read, opened)
    return Final(None if unended else read([*chain(*final)]).lstrip(), sum(map(len, reasoning)))


def final_of_text(tokenizer: Any, setting: Reasoning, turn: Sequence[int], text: str) -> Final:
    """Return the final part of an answer of which only the text is there, in which tokens are counted."""
    marks = marks_of(tokenizer, setting)
    if marks is None:
        return Final(text)
    parts = _parts_of_text(text, marks)
    opened = _opened(marks, _parts_of_text(tokenizer.decode(list(turn)), marks), str)
    if isinstance(marks, Channels) and len(parts) == 1 and (spelled := SPELLED.fullmatch(text)):
        return final_of_parts(tokenizer, spelled[1], spelled[2])
    if len(parts) == 1 and not opened:
        return Final(text, 0)
    reasoning, final, unended = marks.split(parts, str, opened)
    return final_of_parts(tokenizer, "".join(reasoning), None if unended else "".join(final))


def final_of_parts(tokenizer: Any, reasoning: str, final: str | None) -> Final:
    """Return the final part of an answer that is divided already; None: it has none."""
    tokens = len(tokenizer(reasoning, add_special_tokens=False).input_ids)
    return Final(None if final is None else final.lstrip(), tokens)


def joined(tokenizer: Any, reasoning: str, final: str | None) -> str:
    """Return the whole of an answer that a server has divided, with the marks of the model."""
    return (marks_of(tokenizer, "auto") or THINK).joined(reasoning, final)


def _opened(marks: Marks, turn: Sequence[Part], read: Callable[[Any], str]) -> bool:
    """Return whether what the chat template puts before an answer begins the reasoning."""
    if isinstance(marks, Channels) and turn[-1].mark != MESSAGE:
        return False
    return len(turn) > 1 and marks.split(turn, read, False).unended


@lru_cache(maxsize=4)
def _ids(tokenizer: Any, marks: tuple[str, ...]) -> Mapping[int, str]:
    """Return the marks that are one token each, by their ids."""
    encoded = tokenizer(list(marks), add_special_tokens=False).input_ids
    return {ids[0]: mark for mark, ids in zip(marks, encoded, strict=True) if len(ids) == 1}


def _parts_of_ids(ids: Sequence[int], known: Mapping[int, str]) -> list[Part]:
    places = [place for place, token in enumerate(ids) if token in known]
    borders = [*places, len(ids)]
    parts = [Part(known[ids[at]], ids[at + 1 : end]) for at, end in zip(places, borders[1:], strict=True)]
    return [Part("", ids[: borders[0]]), *parts]


def _parts_of_text(text: str, marks: Marks) -> list[Part]:
    first, *rest = re.split(f"({'|'.join(map(re.escape, marks.marks))})", text)
    return [Part("", first), *map(Part, rest[::2], rest[1::2])]
