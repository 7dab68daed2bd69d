"""Runs of agents as prompts: through templates with tools, through others, and without one."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.trajectories.tests.runs import THREE, TOOLS, task_of
from kvbench.extras.trajectories.trajectories import RecordedTrajectories
from kvbench.models.prompts.build import build
from kvbench.models.prompts.prompt import Prompt
from kvbench.tasks.task import Sample
from tests.models.tokenizers import TURNS, of_bytes, of_words

NATIVE = (
    "{% if tools %}<|system|>{{ tools | tojson }}</s>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}</s>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A template of tools, as those of Qwen are."""
THINKS = NATIVE.replace("<|assistant|>{%", "<|assistant|>(no thoughts){%")
"""It begins an answer with what later renderings leave out, as that of Qwen 3 does."""
FORGETS = NATIVE.replace("{{ m['content'] }}", "{{ m['content'] if loop.last else '' }}").replace(
    "in m.tool_calls or []", "in (m.tool_calls or [] if loop.last else [])"
)


NAMED: dict[str, Any] = {"path": "mine.jsonl", "name": "mine", "measure": "calls"}


def samples_of(tmp_path: Path, *rows: Any) -> list[Sample]:
    return list(task_of(tmp_path, *rows).generate(len, range(2)))  # type: ignore[arg-type]


def prompt_of(tokenizer: Any, sample: Sample, evict_after: Any = "context", **settings: Any) -> Prompt:
    return build(tokenizer, sample, RecordedTrajectories(**NAMED), 5000, evict_after=evict_after, **settings)


def texts(tokenizer: Any, prompt: Prompt) -> list[str]:
    """Each turn, the part read after the eviction, the answer."""
    places = [sum(prompt.blocks[:number]) for number in range(len(prompt.blocks) + 1)]
    turns = [prompt.prefill[start:end] for start, end in pairwise(places)]
    return [tokenizer.decode(ids) for ids in (*turns, prompt.question, prompt.answer)]


def test_a_template_with_tools_writes_calls_and_outputs(tmp_path: Path) -> None:
    tokenizer = of_bytes(template=NATIVE)
    _, sample = samples_of(tmp_path)
    first, second, last, answer = texts(tokenizer, prompt_of(tokenizer, sample))
    assert first == f'<|system|>{json.dumps(TOOLS)}</s><|user|>Start with a.</s><|assistant|>[look {{"at": "a"}}]</s>'
    assert second == '<|tool|>out 0</s><|user|>Then do 0.</s><|assistant|>[take {"id": 7, "all": true}]</s>'
    assert last == "<|tool|>out 1</s><|user|>Then do 1.</s><|assistant|>"
    assert answer == '[drop {"where": ["x", null]}]'
    assert texts(of_bytes(template=THINKS), prompt_of(of_bytes(template=THINKS), sample)) == [
        *(first, second, last + "(no thoughts)", answer)
    ]


def test_other_templates_and_none_read_plain_words(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be quick."}
    _, sample = samples_of(tmp_path, THREE | {"messages": [system, *THREE["messages"]]})
    call = '{"name": "drop", "arguments": {"where": ["x", null]}}'
    templated, raw = of_bytes(template=TURNS), of_bytes()
    first, second, last, answer = texts(templated, prompt_of(templated, sample))
    assert first.startswith("<|user|>Be quick.\n\nTools:\n" + json.dumps(TOOLS[0]) + "\nCall one tool at a time.")
    assert first.endswith('Start with a.<|assistant|>{"name": "look", "arguments": {"at": "a"}}')
    assert second.startswith("<|user|>Output of the tool:\nout 0\n\nThen do 0.<|assistant|>{")
    assert (last, answer) == ("<|user|>Output of the tool:\nout 1\n\nThen do 1.<|bot|>", call)
    *_, last, answer = texts(raw, prompt_of(raw, sample))
    assert (last, answer) == ("User: Output of the tool:\nout 1\n\nThen do 1.\n\nAssistant:", f" {call}")
    prompt = prompt_of(raw, sample)
    assert raw.decode([*prompt.prefill, *prompt.question]) == sample.prompt


@pytest.mark.parametrize(
    ("kind", "template"), [("first", NATIVE), ("always", TURNS), ("legacy", None), ("bytes", NATIVE), ("bytes", None)]
)
def test_later_turns_change_no_token_of_earlier_ones(kind: Any, template: str | None, tmp_path: Path) -> None:
    tokenizer = of_words(kind, begin=True, template=template)
    earlier, later = (prompt_of(tokenizer, sample) for sample in samples_of(tmp_path))
    assert later.prefill[: len(earlier.prefill)] == earlier.prefill
    assert later.blocks[0] == len(earlier.prefill) == sum(earlier.blocks)
    read = earlier.prefill + earlier.question + earlier.answer
    assert later.prefill[: len(read)] == read or template == TURNS  # which begins recorded answers otherwise
    assert earlier.prefill[0] == tokenizer.bos_token_id and earlier.prefill.count(tokenizer.bos_token_id) == 1


def test_the_parts_of_a_prompt_that_methods_ask_for(tmp_path: Path) -> None:
    tokenizer = of_bytes(template=NATIVE)
    _, sample = samples_of(tmp_path)
    context, whole = (prompt_of(tokenizer, sample, evict_after) for evict_after in ("context", "prompt"))
    assert whole.prefill == context.prefill + context.question and whole.question == ()
    assert whole.blocks == (*context.blocks, len(context.question))
    assert whole.question_tokens == len(context.question) and context.question_tokens == 0
    assert tokenizer.decode(whole.prefill[: whole.prefix_tokens]) == f"<|system|>{json.dumps(TOOLS)}</s><|user|>"
    assert (
        tokenizer.decode(whole.prefill[-whole.suffix_tokens :]) == "</s><|assistant|>" == tokenizer.decode(whole.turn)
    )
    assert context.border_tokens is None
    named = prompt_of(tokenizer, sample, system="Be brief.")
    assert texts(tokenizer, named)[0].count("<|system|>Be brief.</s>") == 1


@pytest.mark.parametrize("template", [NATIVE, TURNS, None])
def test_turns_end_behind_answers_that_were_quoted_before(template: str | None, tmp_path: Path) -> None:
    """As the user says what the assistant then answers, and the system what the user begins with."""
    tokenizer, call = of_bytes(template=template), {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}
    messages = [("system", "Say hello. You may."), ("user", "Say hello."), ("assistant", "hello."), ("user", "Now f.")]
    run = {"messages": [*({"role": role, "content": text} for role, text in messages), call]}
    (sample,) = task_of(tmp_path, run).generate(len, range(1))  # type: ignore[arg-type]
    prompt = prompt_of(tokenizer, sample)
    first, last, _ = texts(tokenizer, prompt)
    assert first.count("hello.") == 3 and "Now f." in last
    assert tokenizer.decode(prompt.prefill[: prompt.prefix_tokens]).count("hello.") == 1


def test_templates_that_rewrite_turns_are_refused(tmp_path: Path) -> None:
    _, sample = samples_of(tmp_path)
    with pytest.raises(ValueError, match=r"rewrites message 1 when later ones follow.*use model.chat=never"):
        prompt_of(of_bytes(template=FORGETS), sample)
    with pytest.raises(ValueError, match="the model's chat template refuses"):
        prompt_of(of_bytes(template=NATIVE.replace("<|assistant|>{%", "{{ 1 / 0 }}{%")), sample)
    answers = THREE | {"messages": [{"role": "system", "content": "x"}, *THREE["messages"]]}
    with pytest.raises(ValueError, match=r"model\.system is set"):
        prompt_of(of_bytes(template=NATIVE), samples_of(tmp_path, answers)[1], system="y")
