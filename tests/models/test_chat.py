"""Chat templates: what is around the user's words, where the context ends, and what does not depend on the day."""

from pathlib import Path
from typing import Any

import pytest

from kvbench.models.loading.spec import ModelSpec, describe_model, template_arguments
from kvbench.models.prompts.chat import after_answer, around, check_chat, give_arguments, render, split, uses_template
from kvbench.tasks.task import Sample, Turn
from tests.models.tokenizers import TURNS, of_bytes


@pytest.mark.parametrize(
    ("context", "question", "before", "after"),
    [
        ("A sky.", " Blue?", "A sky.", " Blue?"),
        ("\n A sky.", " Blue? \n", "A sky.", " Blue?"),
        ("A sky. ", "\n", "A sky.", ""),
        ("user", "user", "user", "user"),
        ("  ", "Blue?", "", "Blue?"),
    ],
)
def test_a_turn_is_split_where_its_context_ends(context: str, question: str, before: str, after: str) -> None:
    """The template strips what it wraps, and its own marks hold words of the context."""
    sides = split(of_bytes(template=TURNS), "Be brief.", context, question)
    assert sides == (f"<|system|>Be brief.<|user|>{before}", f"{after}<|bot|>")
    assert "".join(sides) == render(of_bytes(template=TURNS), "Be brief.", context + question)


@pytest.mark.parametrize(
    ("strip", "context", "question"), [("", " a ", " b "), (".rstrip()", " a ", " b"), (".lstrip()", "a ", " b ")]
)
def test_a_turn_is_split_by_templates_that_strip_nothing_or_one_side(strip: str, context: str, question: str) -> None:
    tokenizer = of_bytes(template="<|user|>{{ messages[0]['content']" + strip + " }}<|bot|>")
    assert split(tokenizer, None, " a ", " b ") == (f"<|user|>{context}", f"{question}<|bot|>")


def test_a_template_that_rewrites_the_prompt_cannot_be_split() -> None:
    shouting = of_bytes(template="{{ messages[0]['content'] | upper }}<|bot|>")
    assert render(shouting, None, "Hi.") == "HI.<|bot|>"
    with pytest.raises(ValueError, match=r"schedule\.evict_after=context: .* rewrites the prompt"):
        split(shouting, None, "A sky.", " Blue?")


@pytest.mark.parametrize(
    "template",
    [
        "{{ strftime_now('%d %b %Y') }} {{ messages[0]['content'] }}",
        "{% if not date_string is defined %}{% set date_string = strftime_now('%Y') %}{% endif %}"
        "{{ date_string }} {{ messages[0]['content'] }}",
    ],
)
def test_a_prompt_does_not_depend_on_the_day(template: str) -> None:
    assert render(of_bytes(template=template), None, "Hi.") == "26 Jul 2024 Hi."


THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3's: an empty thought begins the answer if the model may not think."""
ASKED, THOUGHT = "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n", "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("given", "end"), [({}, ""), ({"enable_thinking": False}, THOUGHT), ({"enable_thinking": True}, "")]
)
def test_arguments_reach_the_template_wherever_it_is_rendered(given: dict[str, Any], end: str) -> None:
    tokenizer = of_bytes(template=THINKS)
    give_arguments(tokenizer, given)
    assert render(tokenizer, None, "Hi.") == ASKED + end
    assert around(tokenizer, None)[1] == f"<|im_end|>\n<|im_start|>assistant\n{end}"
    assert "".join(split(tokenizer, None, "H", "i.")) == ASKED + end
    assert after_answer(tokenizer, None, "Who?").endswith(f"Who?<|im_end|>\n<|im_start|>assistant\n{end}")


@pytest.mark.parametrize(
    ("template", "name", "message"),
    [
        (THINKS, "enable_thought", "names enable_thought, which is no variable of the model's chat template"),
        (THINKS, "messages", "names messages, which is no variable"),
        (None, "enable_thinking", "names enable_thinking, but the tokenizer has no chat template: use auto"),
    ],
)
def test_arguments_that_change_nothing_are_refused(template: str | None, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.template_kwargs {message}"):
        give_arguments(of_bytes(template=template), {name: False})


@pytest.mark.parametrize(
    ("template", "settings", "arguments"),
    [
        (THINKS, {}, {"enable_thinking": False}),
        (THINKS, {"template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
        (THINKS, {"template_kwargs": {}}, {}),
        (THINKS, {"chat": "never"}, {}),
        (TURNS, {}, {}),
    ],
)
def test_thinking_is_off_by_default_and_in_the_name_of_a_cell(
    template: str, settings: dict[str, Any], arguments: dict[str, Any], tmp_path: Path
) -> None:
    """As in kvpress and KVzip; models without the variable keep the names of their cells."""
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "chat_template.jinja").write_text(template)
    spec = ModelSpec("hf", str(tmp_path), **settings)
    assert template_arguments(spec) == arguments
    assert describe_model(spec).get("template_kwargs") == (arguments or None)


PARTS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
REFUSING = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn here') }}{% endif %}" + TURNS
DEAF = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "chat", "message"),
    [
        (None, "auto", r"a raw prompt has no system turn \(the tokenizer has no chat template\)"),
        (TURNS, "never", r"a raw prompt has no system turn \(model\.chat=never\)"),
        (REFUSING, "auto", r"model\.system: the model's chat template refuses: no system turn here"),
        (DEAF, "auto", r"template leaves it out"),
    ],
)
def test_a_system_prompt_without_a_place_is_refused(template: str | None, chat: Any, message: str) -> None:
    tokenizer = of_bytes(template=template)
    check_chat(tokenizer, chat, None)
    with pytest.raises(ValueError, match=message):
        check_chat(tokenizer, chat, "Be brief.")


def test_templates_of_vision_models_read_parts() -> None:
    rendered = render(of_bytes(template=PARTS), "Be brief.", "Who?", [("user", "A"), ("assistant", "B")])
    assert rendered == "<|system|>Be brief.<|user|>A<|assistant|>B<|user|>Who?"


def test_who_decides_about_a_template() -> None:
    templated, bare = of_bytes(template=TURNS), of_bytes()
    assert uses_template(templated, "auto") and uses_template(templated, "required")
    assert not uses_template(templated, "never") and not uses_template(bare, "auto")
    assert not uses_template(templated, "auto", of_task=False)
    with pytest.raises(ValueError, match=r"model\.chat=required, but task\.chat=false"):
        uses_template(templated, "required", of_task=False)
    with pytest.raises(ValueError, match=r"model\.chat=required, but the tokenizer has no chat template"):
        check_chat(bare, "required", None)
    check_chat(templated, "required", "Be brief.")
    with pytest.raises(ValueError, match=r"chat template leaves out what the user says: use model\.chat=never"):
        check_chat(of_bytes(template="<|bot|>"), "auto", None)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_what_follows_a_context_in_a_conversation_is_that_of_the_template(system: str | None) -> None:
    """A rendered conversation, with the mark of the model's turn as it stands before an answer that is generated."""
    tokenizer = of_bytes(template=TURNS)
    before = [("user", "A sky.\n\nQ: Blue?"), ("assistant", "yes"), ("user", "Q: Red?"), ("assistant", "no")]
    opening, parts = render(tokenizer, system, "A sky.\n\nQ: Blue?"), ("Q: Red?", "Q: Green?")
    red, green = (after_answer(tokenizer, system, question) for question in parts)
    text = f"{opening}yes{red}no{green}"
    assert text.replace("<|bot|>", "<|assistant|>", 2) == render(tokenizer, system, "Q: Green?", before)
    earlier = Turn("\n\nQ: Blue? ", "\nyes", 5), Turn("\n\nQ: Red?", None, 5)
    sample = Sample(0, "sky", "A sky.", "\n\nQ: Green?", "", ("no",), 5, earlier=earlier)
    assert sample.prompt == "A sky.\n\nQ: Blue? \nyes\n\nQ: Red?\n\nQ: Green?" and sample.own_tokens == 10


def test_a_template_that_forgets_earlier_turns_cannot_go_on() -> None:
    """Nor can one that says in the last turn what was said in the first, as Mistral's do with the system turn."""
    late = "{% for m in messages[1:] %}{{ m.role }}{{ messages[0].content if loop.last }}{{ m.content }}{% endfor %}"
    for template, system in (("<|user|>{{ messages[-1]['content'] }}<|bot|>", None), (late, "Be brief.")):
        with pytest.raises(ValueError, match=r"task\.turns: the model's chat template rewrites earlier turns"):
            after_answer(of_bytes(template=template), system, "Q: Green?")
