"""From a sample's text to the token ids that a model reads. It knows nothing about tasks or caches."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvbench.models.spec import Chat


@dataclass(frozen=True)
class Prompt:
    """Token ids of a prompt and the SHA-256 of its final text."""

    ids: tuple[int, ...]
    sha256: str


def count_tokens(tokenizer: Any, text: str) -> int:
    """Tokens of a text without special ones: how benchmarks measure their contexts."""
    return len(tokenizer(text, add_special_tokens=False).input_ids)


def uses_template(tokenizer: Any, chat: Chat) -> bool:
    """Whether prompts go inside the tokenizer's chat template. Raises ValueError when a required one is missing."""
    if chat == "required" and not tokenizer.chat_template:
        raise ValueError("model.chat=required, but the tokenizer has no chat template: use auto or never")
    return chat != "never" and bool(tokenizer.chat_template)


def stop_tokens(tokenizer: Any, texts: Iterable[str]) -> frozenset[int]:
    """The tokens that end an answer at these texts: the last one of each text's encoding, as LongBench's pred.py does.

    Raises ValueError for a text of several tokens: the last of them would also end answers that lack the rest.
    """
    found = set()
    for text in texts:
        *_, last = tokenizer(text, add_special_tokens=False).input_ids
        if tokenizer.decode([last]) != text:
            raise ValueError(
                f"task.stop={text!r} is not one token of the model's tokenizer: only one token ends an answer"
            )
        found.add(last)
    return frozenset(found)


def build(tokenizer: Any, text: str, answer_prefix: str, chat: Chat, max_tokens: int) -> Prompt:
    """Tokenise a prompt, inside the model's chat template where `chat` asks for it and the tokenizer has one.

    The answer prefix follows the template, where the answer begins. A chat template brings its own special tokens; a
    raw prompt gets those that the tokenizer adds. Raises ValueError when a required template is missing or the prompt
    is longer than `max_tokens`.
    """
    templated = uses_template(tokenizer, chat)
    if templated:
        turn = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    text += answer_prefix
    ids = tokenizer(text, add_special_tokens=not templated).input_ids
    if len(ids) > max_tokens:
        raise ValueError(f"the prompt has {len(ids)} tokens, the model reads at most {max_tokens} before its answer")
    return Prompt(tuple(ids), hashlib.sha256(text.encode()).hexdigest())
