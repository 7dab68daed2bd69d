"""What of an answer is reasoning, by the marks of models that think, and what a metric sees of it."""

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from kvbench.models.prompts.chat import around
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.reasoning import KNOWN, Channels, Tags, final_of_ids, final_of_text, marks_of, turn_before
from kvbench.models.prompts.tokens import plain
from kvbench.tasks.task import Final, Reasoning, Sample
from tests.models.tokenizers import Counted, of_bytes

TURN = (
    "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|bot|>END{% endif %}"
)
CHANNELS = Channels().marks
TAGS = [kind for kind in KNOWN if isinstance(kind, Tags)]


def thinking(marks: Sequence[str], begins: str = "", special: bool = True) -> Any:
    """A tokenizer with these marks as tokens, whose template begins an answer with a text."""
    tokenizer = deepcopy(of_bytes(template=TURN.replace("END", begins)))
    tokenizer.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    return tokenizer


def final(tokenizer: Any, answer: str, setting: Reasoning = "auto") -> Final:
    """The final part of an answer that a model writes to the template of its tokenizer."""
    ids = tokenizer(answer, add_special_tokens=False).input_ids
    text = tokenizer.decode(ids, skip_special_tokens=True)
    turn = plain(tokenizer, around(tokenizer, None)[1])
    return final_of_ids(tokenizer, setting, turn, ids, text)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("tags", TAGS, ids=lambda tags: tags.opens[0])
def test_what_follows_the_reasoning_is_seen(tags: Tags, special: bool) -> None:
    opens, closes = tags.marks
    tokenizer = thinking(tags.marks, special=special)
    assert marks_of(tokenizer, "auto") == tags
    assert final(tokenizer, f"{opens}\nabc{closes}\n\n42") == Final("42", 4)
    assert final(tokenizer, f"abc{closes} 42") == Final("42", 3)  # opened elsewhere
    assert final(tokenizer, f"{opens}abc") == Final(None, 3)
    assert final(tokenizer, f"{opens}ab{closes}4{opens}c{closes}2") == Final("42", 3)
    assert final(tokenizer, f"{opens}ab{closes}42{opens}c") == Final(None, 3)
    assert final(tokenizer, " 42 \n") == Final(" 42 \n", 0)


def test_a_template_may_begin_or_end_the_reasoning() -> None:
    """DeepSeek-R1's and QwQ's open it; that of Qwen3 closes it where the model may not think."""
    opened = thinking(("<think>", "</think>"), "<think>\n")
    assert final(opened, "abc</think>42") == Final("42", 3)
    assert final(opened, "abc") == Final(None, 3)
    closed = thinking(("<think>", "</think>"), "<think>\n\n</think>\n\n")
    assert final(closed, "42") == Final("42", 0)


def test_an_answer_that_a_prefix_begins_may_end_without_marks() -> None:
    """A prefix stands within the reasoning that the template opens: only at its limit has such an answer no end."""
    prompt, sample = Prompt((1,), (), "", turn=(2, 3)), Sample(0, "", "", "", " It is", (), 1)
    assert turn_before(prompt, sample, "limit") == (2, 3) and turn_before(prompt, sample, "end") == ()
    assert turn_before(prompt, replace(sample, answer_prefix=""), "end") == (2, 3)
    assert turn_before(prompt, replace(sample, answer_prefix=""), None, is_raw=False) == ()


def test_marks_may_be_texts_that_only_the_template_names() -> None:
    """Those of Nemotron and Granite are no tokens; nor are they for a model that spells those of its tokenizer."""
    tokenizer = of_bytes(template=TURN.replace("END", "{# between <think> and </think> #}"))
    assert final(tokenizer, "<think>abc</think>\n42") == Final("42", 3)
    assert final(tokenizer, "<think>abc") == Final(None, 3)
    opening = of_bytes(template=TURN.replace("END", "<think>"))
    assert (final(opening, "abc</think>42"), final(opening, "abc")) == (Final("42", 3), Final(None, 3))
    known = thinking(("<think>", "</think>"))
    spelled = [known.convert_tokens_to_ids(letter) for letter in "<think>abc</think>42"]
    assert final_of_ids(known, "auto", (), spelled, known.decode(spelled)) == Final("42", 3)


def test_only_a_model_that_marks_reasoning_is_searched_for_it() -> None:
    plain_model, answer = of_bytes(template=TURN), "<think>abc</think>42"
    assert final(plain_model, answer) == Final(answer)
    assert final(plain_model, answer, "strip") == Final("42", 3)
    assert final(plain_model, "[THINK]abc", "strip") == Final(None, 3)
    assert final(thinking(("<think>", "</think>"), special=False), answer, "keep") == Final(answer)


def test_a_tokenizer_is_asked_once_for_its_marks() -> None:
    counted = Counted(thinking(("<think>", "</think>")))
    for _ in range(3):
        assert final_of_ids(counted, "auto", (), [1, 2], "ab") == Final("ab", 0)
    assert len(counted.encoded) == 2, "all marks that are known, and those of this tokenizer"


ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"{ANALYSIS}abc<|end|>{FINAL}42", Final("42", 3)),
        (f"{ANALYSIS}abc<|end|><|start|>assistant{ANALYSIS}de<|end|>{FINAL}42<|return|>", Final("42", 5)),
        (f"{ANALYSIS}abc", Final(None, 3)),
        (f"{ANALYSIS}abc<|end|>", Final(None, 3)),
        (f"{ANALYSIS}abc<|end|><|start|>assistant<|channel|>fin", Final(None, 3)),
        (f"{ANALYSIS}abc<|end|>{FINAL}", Final("", 3)),
        (
            f"{ANALYSIS}abc<|end|><|start|>assistant<|channel|>commentary to=f <|constrain|>json<|message|>42",
            Final("42", 3),
        ),
        (f"{FINAL.partition('assistant')[2]}42", Final("42", 0)),
        ("analysis of 42", Final("analysis of 42", 0)),
    ],
)
def test_the_channels_of_gpt_oss_are_known_by_their_tokens(answer: str, expected: Final) -> None:
    """Their names are left in the text, and their marks are not."""
    tokenizer = thinking((*CHANNELS, "<|constrain|>"), "<|start|>assistant")
    assert final(tokenizer, answer) == expected
    spelled = final_of_text(tokenizer, "auto", (), answer)
    if answer != "analysis of 42":  # which a server that has dropped the marks may have written
        assert spelled == expected


def test_a_server_may_have_dropped_the_marks_of_channels() -> None:
    tokenizer = thinking(CHANNELS)
    assert final_of_text(tokenizer, "auto", (), "analysisabcassistantfinal42") == Final("42", 3)
    assert final_of_text(tokenizer, "auto", (), "analysisabc") == Final(None, 3)


THINKING = thinking(("<think>", "</think>"))


@given(st.lists(st.sampled_from(("<think>", "</think>", "a", "b ", "\n"))))
def test_each_token_is_reasoning_or_a_mark_or_of_the_final_part(pieces: list[str]) -> None:
    tokenizer, answer = THINKING, "".join(pieces)
    by_ids = final(tokenizer, answer)
    assert by_ids == final_of_text(tokenizer, "auto", (), answer) and by_ids.tokens is not None
    letters = answer.replace("<think>", "").replace("</think>", "")
    assert by_ids.tokens <= len(letters)
    if by_ids.text is not None:
        assert len(by_ids.text) <= len(letters) - by_ids.tokens
    else:
        assert answer.rfind("<think>") > answer.rfind("</think>")


TEMPLATES = os.environ.get("KVBENCH_TEMPLATES")
"""A folder with chat templates of models, as models/templates of llama.cpp, which its sdists hold too."""
OF_MODELS = {
    "Qwen-Qwen3-0.6B": "<think>",
    "Qwen3.5-4B": "<think>",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "<think>",
    "GLM-4.6": "<think>",
    "GLM-4.7-Flash": "<think>",
    "HuggingFaceTB-SmolLM3-3B": "<think>",
    "MiniMax-M2": "<think>",
    "NVIDIA-Nemotron-Nano-v2": "<think>",
    "ibm-granite-granite-3.3-2B-Instruct": "<think>",
    "ByteDance-Seed-OSS": "<seed:think>",
    "mistralai-Ministral-3-14B-Reasoning-2512": "[THINK]",
    "Apertus-8B-Instruct": "<|inner_prefix|>",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "<|START_THINKING|>",
    "google-gemma-4-31B-it": "<|channel>",
    "openai-gpt-oss-120b": CHANNELS[0],
}


@pytest.mark.skipif(TEMPLATES is None, reason="needs the chat templates of models: KVBENCH_TEMPLATES=FOLDER")
@pytest.mark.parametrize(("model", "mark"), OF_MODELS.items())
def test_templates_of_models_that_think(model: str, mark: str) -> None:
    """The marks are found, and an answer is divided whether the template has begun the reasoning or not."""
    kind = next(kind for kind in KNOWN if mark in kind.marks)
    tokenizer = deepcopy(of_bytes(template=(Path(str(TEMPLATES)) / f"{model}.jinja").read_text("utf-8")))
    tokenizer.add_tokens([AddedToken(each, special=True, normalized=False) for each in kind.marks])
    assert marks_of(tokenizer, "auto") == kind and marks_of(tokenizer, "keep") is None
    if isinstance(kind, Channels):
        begins, ends = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
    else:
        is_open = around(tokenizer, None)[1].rstrip().endswith(mark)
        begins, ends = "" if is_open else mark, kind.closes[0]
    assert final(tokenizer, f"{begins}ab{ends}42") == Final("42", 2)
    assert final(tokenizer, f"{begins}ab") == Final(None, 2)
