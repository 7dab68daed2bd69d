"""From text to token ids."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvbench.models.prompt import build, count_tokens, stop_tokens

TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
)


@pytest.fixture
def tokenizer() -> Any:
    """The tokenizer of the RULER files, which adds no special tokens."""
    return AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer")


def test_a_raw_prompt_is_its_text(tokenizer: Any) -> None:
    text = "The grass is green.\n"
    prompt = build(tokenizer, text, "", "auto", 100)
    assert tokenizer.decode(prompt.ids) == text
    assert prompt.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert count_tokens(tokenizer, text) == len(prompt.ids)


def test_a_chat_template_is_used_when_there_is_one(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE
    for chat in ("auto", "required"):
        assert tokenizer.decode(build(tokenizer, "Hi.", " So", chat, 100).ids) == "<|user|>Hi.<|bot|> So"
    assert tokenizer.decode(build(tokenizer, "Hi.", " So", "never", 100).ids) == "Hi. So"


def test_a_required_template_must_be_there(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=r"model\.chat=required, but the tokenizer has no chat template"):
        build(tokenizer, "Hi.", "", "required", 100)


def test_a_prompt_must_leave_room_for_its_answer(tokenizer: Any) -> None:
    text = "one two three four five six seven eight"
    tokens = count_tokens(tokenizer, text)
    assert len(build(tokenizer, text, "", "never", tokens).ids) == tokens
    with pytest.raises(ValueError, match=f"{tokens} tokens, the model reads at most {tokens - 1}"):
        build(tokenizer, text, "", "never", tokens - 1)


def test_a_stop_text_is_the_token_that_ends_with_it(tokenizer: Any) -> None:
    (newline,) = tokenizer("\n", add_special_tokens=False).input_ids
    assert stop_tokens(tokenizer, ["\n"]) == {newline} and stop_tokens(tokenizer, []) == frozenset()
    with pytest.raises(ValueError, match=r"task\.stop='No such text' is not one token"):
        stop_tokens(tokenizer, ["\n", "No such text"])
