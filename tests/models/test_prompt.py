"""From text to token ids: templates, special tokens once, and the two sides of a cut."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvbench.models.prompts.build import build
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import TokensOf, ends, stop_tokens, template_tokens, token_texts
from kvbench.tasks.longbench import LongBenchTask
from kvbench.tasks.task import Sample, TaskSettings
from tests.models.tokenizers import TURNS, Counted, of_bytes, of_words
from tests.tasks.ruler.conftest import make

ALL = TaskSettings()


@pytest.fixture
def tokenizer() -> Any:
    """The tokenizer of the RULER files, which adds no special tokens."""
    return AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "golden" / "ruler" / "tokenizer")


def sample(context: str, question: str = "", answer_prefix: str = "") -> Sample:
    return Sample(0, "any", context, question, answer_prefix, ("x",), 8)


def decoded(tokenizer: Any, prompt: Prompt) -> tuple[str, str]:
    """Both sides of the cut in words, special tokens included."""
    return tokenizer.decode(prompt.prefill), tokenizer.decode(prompt.question)


def test_texts_of_tokens_are_the_text(tokenizer: Any) -> None:
    """With a tokenizer of bytes, and with one of words that drops the blank at the start of what it decodes."""
    text = "The grass is green.\n One of the numbers is 8090293."
    ids = TokensOf(tokenizer).encode(text, special=False)
    assert "".join(token_texts(tokenizer, ids)) == text and len(token_texts(tokenizer, ids)) == len(ids)

    class Words:
        def decode(self, ids: list[int]) -> str:
            return "".join(f" {'abcd'[i]}" for i in ids).lstrip()

    assert token_texts(Words(), (0, 3, 1)) == ("a", " d", " b")
    assert token_texts(Words(), ()) == ()


def test_a_text_that_was_counted_is_not_tokenised_to_be_counted_again(tokenizer: Any) -> None:
    counted, other = Counted(tokenizer), Counted(of_bytes())
    texts = ["The sky is blue.", "The sky is green."]
    for turn in range(2):
        tokens = TokensOf(counted, template=turn)
        assert [tokens(text) for text in texts] == [len(tokenizer(text).input_ids) for text in texts]
    assert counted.encoded == texts
    assert TokensOf(other)(texts[0]) == len(texts[0]) and other.encoded == texts[:1]  # of another tokenizer


def test_a_context_is_tokenised_once_for_all_its_questions(tokenizer: Any) -> None:
    counted, context = Counted(tokenizer), "The sky is blue." * 9
    built = [build(counted, sample(context, question), ALL, 999, evict_after="context") for question in ("a?", "b?")]
    assert counted.encoded.count(context) == 1 and built[0].prefill == built[1].prefill
    assert [decoded(tokenizer, prompt)[1] for prompt in built] == ["a?", "b?"]


def test_a_chat_template_is_used_when_there_is_one(tokenizer: Any) -> None:
    tokenizer.chat_template = TURNS
    task_sample = sample("Hi", ".", " So")
    for chat in ("auto", "required"):
        assert decoded(tokenizer, build(tokenizer, task_sample, ALL, 100, chat=chat)) == ("<|user|>Hi.<|bot|> So", "")
    assert decoded(tokenizer, build(tokenizer, task_sample, ALL, 100, chat="never")) == ("Hi. So", "")
    assert decoded(tokenizer, build(tokenizer, task_sample, TaskSettings(chat=False), 100)) == ("Hi. So", "")
    system = build(tokenizer, task_sample, ALL, 100, system="Be brief.")
    assert decoded(tokenizer, system) == ("<|system|>Be brief.<|user|>Hi.<|bot|> So", "")


@pytest.mark.parametrize("template", [TURNS, None])
def test_the_tail_is_what_follows_the_users_text_in_a_template(tokenizer: Any, template: str | None) -> None:
    """The end of the template and the answer prefix; nothing of a raw prompt, or where the question comes later."""
    tokenizer.chat_template = template
    task_sample = sample("The magic number is 7.", " What is it?", " It is")
    prompt = build(tokenizer, task_sample, ALL, 100)
    end = tokenizer.decode(prompt.prefill[len(prompt.prefill) - prompt.suffix_tokens :])
    assert end == ("<|bot|> It is" if template else "")
    assert build(tokenizer, task_sample, ALL, 100, evict_after="context").suffix_tokens == 0


@pytest.mark.parametrize("era", ["2024", "2026"])
@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_2", "vt", "cwe", "fwe"])
def test_a_prompt_of_ruler_fits_its_length_with_a_template(tokenizer: Any, name: str, era: str) -> None:
    """Whatever the model reads beside it: the template of 166 tokens is reserved, and no more than that."""
    tokenizer.chat_template = TURNS
    system = "Be brief. " * 50
    template = template_tokens(tokenizer, "auto", system, True)
    assert 150 < template < 200 and template_tokens(tokenizer, "never", None, True) == 0
    length = 2048 if name == "vt" else 1024  # whose example takes most of the latter
    task = make(name, context_length=length, era=era, samples=3)
    longest = []
    for reserved in (template, 0):
        drawn = task.generate(TokensOf(tokenizer, reserved), range(3))
        longest.append(max(build(tokenizer, each, task, 4096, system=system).tokens for each in drawn))
    room = task.context_length - (0 if (name, era) == ("fwe", "2024") else task.max_new_tokens)  # as officially
    assert longest[0] <= room, (longest, room)
    assert longest[1] > room or (name, era) == ("vt", "2024"), "ten sentences are more than the template"


@pytest.mark.parametrize("begin", [False, True], ids=["bare", "begins"])
@pytest.mark.parametrize("end", [False, True], ids=["open", "ends"])
@pytest.mark.parametrize("text", ["A sky.", "<s>A<s> sky."], ids=["plain", "marked"])
@pytest.mark.parametrize("template", [None, TURNS, "<s>" + TURNS], ids=["raw", "chat", "marked_chat"])
@pytest.mark.parametrize("evict_after", ["prompt", "context"])
def test_a_sequence_begins_at_most_once(begin: bool, end: bool, text: str, template: Any, evict_after: Any) -> None:
    """Whoever puts the mark there: the tokenizer, the template, the text, inside of which it stays. Nothing ends a
    prompt."""
    tokenizer = of_bytes(begin, end, template)
    prompt = build(tokenizer, sample(text, " Blue?", " So"), ALL, 100, evict_after=evict_after)
    marked = begin or (template or text).startswith("<s>")
    whole = f"{text.removeprefix('<s>')} Blue?"
    whole = f"<|user|>{whole}<|bot|> So" if template else f"{whole} So"
    assert "".join(decoded(tokenizer, prompt)) == ("<s>" if marked else "") + whole


def test_tokenizers_that_always_begin_a_sequence_do_it_once() -> None:
    """Whatever they are told about special tokens."""

    class Stubborn:
        bos_token, bos_token_id, chat_template = "<s>", 0, None

        def __init__(self) -> None:
            self.inner = of_bytes(begin=True)

        def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
            return self.inner(text)

    prompt = build(Stubborn(), sample("A sky.", " Blue?"), ALL, 100, evict_after="context")
    assert decoded(of_bytes(), prompt) == ("<s>A sky.", " Blue?")
    assert decoded(of_bytes(), build(Stubborn(), sample("<s>A sky."), ALL, 100)) == ("<s>A sky.", "")


def test_the_cut_is_after_the_context(tokenizer: Any) -> None:
    """Chat header and context before it; question, end of the turn and answer prefix after it."""
    task_sample = sample("The sky. ", " Blue?", " It is")
    raw = build(tokenizer, task_sample, ALL, 100, evict_after="context")
    assert decoded(tokenizer, raw) == ("The sky. ", " Blue? It is")
    tokenizer.chat_template = TURNS
    templated = build(tokenizer, task_sample, ALL, 100, system="Be brief.", evict_after="context")
    assert decoded(tokenizer, templated) == ("<|system|>Be brief.<|user|>The sky. ", " Blue?<|bot|> It is")
    other = build(tokenizer, sample("The sky. ", "Green?\n"), ALL, 100, system="Be brief.", evict_after="context")
    assert other.prefill == templated.prefill and other.question != templated.question


@pytest.mark.parametrize("template", [TURNS, "<s>" + TURNS, "\n<s>" + TURNS], ids=["bare", "marked", "marked_later"])
def test_a_templated_prompt_has_the_tokens_of_the_official_code(template: str) -> None:
    """LongBench's pred.py: `tokenizer(build_chat(...))` adds the first token; a template that has it gets no second."""
    tokenizer = of_bytes(begin=True, template=template)
    turn = [{"role": "user", "content": "A sky. Blue?"}]
    rendered = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    official = tokenizer(rendered, add_special_tokens=template == TURNS).input_ids
    prompt = build(tokenizer, sample("A sky.", " Blue?"), ALL, 100)
    assert list(prompt.prefill) == official and official.count(tokenizer.bos_token_id) == 1
    divided = build(tokenizer, sample("A sky.", " Blue?"), ALL, 100, evict_after="context")
    assert list(divided.prefill + divided.question) == official
    assert prompt.prefix_tokens == divided.prefix_tokens == official.index(tokenizer.convert_tokens_to_ids("A"))


@pytest.mark.parametrize("begin", [False, True], ids=["bare", "begins"])
@pytest.mark.parametrize(
    "template", [None, TURNS, "{{ messages[0]['content'] }} [/INST]"], ids=["raw", "turns", "text"]
)
@pytest.mark.parametrize("kind", ["first", "always", "legacy", "bytes"])
def test_context_and_question_are_the_tokens_of_the_whole_prompt(kind: Any, template: Any, begin: bool) -> None:
    """No blank is put before the question, whatever the tokenizer puts before a text."""
    tokenizer = of_words(kind, begin, template)
    context, question = "The sky is blue.\n", "Which colour is the sky?"
    whole = build(tokenizer, sample(context, question), ALL, 100)
    divided = build(tokenizer, sample(context, question), ALL, 100, evict_after="context")
    assert divided.prefill + divided.question == whole.prefill and divided.border_tokens is None
    assert whole.border_tokens is None and whole.sha256 == divided.sha256
    assert (whole.question_tokens, divided.question_tokens) == (len(divided.question), 0)
    if template is None:
        assert list(whole.prefill) == tokenizer(context + question).input_ids
    if kind != "bytes":
        assert tokenizer.convert_ids_to_tokens(divided.question[0]) == "Which"
    other = build(tokenizer, sample(context, "Is the sky blue?"), ALL, 100, evict_after="context")
    assert other.prefill == divided.prefill, "the context does not depend on the question"


def test_a_prompt_without_a_later_question_is_tokenised_once(tokenizer: Any) -> None:
    counted, text = Counted(tokenizer), "The sky is blue."
    assert build(counted, sample(text), ALL, 100).border_tokens is None
    assert counted.encoded.count(text) == 1


@pytest.mark.parametrize("kind", ["first", "always", "legacy", "bytes"])
def test_a_token_across_the_border_is_divided_and_counted(kind: Any) -> None:
    """' blue' is one token; apart it is a blank, and 'blue' without another one before it."""
    tokenizer = of_words(kind, begin=True)
    context, question = "The sky is ", "blue sky?"
    whole = tokenizer(context + question).input_ids
    prompt = build(tokenizer, sample(context, question), ALL, 100, evict_after="context")
    read = list(prompt.prefill + prompt.question)
    assert read != whole and list(prompt.prefill) == tokenizer(context).input_ids
    before = next(count for count, pair in enumerate(zip(read, whole, strict=False)) if pair[0] != pair[1])
    behind = len(whole) - before - 1
    assert read[len(read) - behind :] == whole[before + 1 :], "one token of the whole prompt is replaced"
    assert prompt.border_tokens == len(read) - len(whole) + 1
    spelled = "".join(tokenizer.convert_ids_to_tokens(read[1:]))
    blank = "\u0120" if kind == "bytes" else "\u2581"
    lead = "" if kind == "bytes" else blank
    assert spelled == lead + (context + question).replace(" ", blank)


@pytest.mark.parametrize(
    ("parts", "evict_after", "lacking"),
    [
        (("", ""), "prompt", "no tokens"),
        (("", "Blue?"), "context", r"schedule\.evict_after=context: the sample has no context to evict from"),
        (("A sky.", ""), "context", r"evict_after=context: the sample has no question to read after the eviction"),
    ],
)
def test_what_is_read_on_a_side_of_a_cut_must_be_there(
    tokenizer: Any, parts: tuple[str, str], evict_after: Any, lacking: str
) -> None:
    with pytest.raises(ValueError, match=lacking):
        build(tokenizer, sample(*parts), ALL, 100, evict_after=evict_after)


@pytest.mark.parametrize("evict_after", ["prompt", "context"])
def test_a_prompt_must_leave_room_for_its_answer(tokenizer: Any, evict_after: Any) -> None:
    task_sample = sample("one two three four five six seven eight", " nine")
    tokens = build(tokenizer, task_sample, ALL, 1000, evict_after=evict_after).tokens
    assert build(tokenizer, task_sample, ALL, tokens, evict_after=evict_after).tokens == tokens
    with pytest.raises(ValueError, match=f"{tokens} tokens, the model reads at most {tokens - 1}"):
        build(tokenizer, task_sample, ALL, tokens - 1, evict_after=evict_after)


def test_a_stop_text_is_the_token_that_ends_with_it(tokenizer: Any) -> None:
    (newline,) = tokenizer("\n", add_special_tokens=False).input_ids
    assert stop_tokens(tokenizer, ["\n"]) == {newline} and stop_tokens(tokenizer, []) == frozenset()
    with pytest.raises(ValueError, match=r"task\.stop='No such text' is not one token"):
        stop_tokens(tokenizer, ["\n", "No such text"])


def test_samsum_stops_at_a_line_break_and_the_tokenizers_end_alone(tokenizer: Any) -> None:
    """As pred.py: of the model's own stop tokens those are gone that the tokenizer does not name."""
    (newline,), end = tokenizer("\n", add_special_tokens=False).input_ids, tokenizer.eos_token_id
    own = frozenset({7, 9} if end is None else {7, 9, end})
    for replaces, wanted in ((True, {newline, end} - {None}), (False, own | {newline})):
        task = LongBenchTask(name="longbench/samsum", member="samsum", stop=("\n",), stop_replaces=replaces)
        assert ends(tokenizer, task, own) == wanted
    assert ends(tokenizer, ALL, own) == own
    with pytest.raises(ValueError, match=r"task\.stop_replaces=true of longbench/samsum"):
        LongBenchTask(name="longbench/samsum", member="samsum", stop_replaces=True)
