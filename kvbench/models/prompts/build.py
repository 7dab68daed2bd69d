"""From the text of a sample to the token ids that a model reads."""

import hashlib
from dataclasses import dataclass
from itertools import chain, pairwise
from pkgutil import resolve_name
from typing import Any, NamedTuple

from kvbench.eviction.schedule import EvictAfter
from kvbench.models.loading.spec import Chat
from kvbench.models.prompts.chat import after_answer, around, render, split, uses_template, wrap
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import after_opening, common_length, continued, opening_of, plain, read
from kvbench.support.errors import UserError
from kvbench.tasks.task import GAP, Sample, TaskSettings, Truncation, Turn


@dataclass(frozen=True)
class TurnTexts:
    """A prompt with a recorded answer, divided where its turns end (`kvbench.tasks.task.TaskSettings.turn_divider`).

    turns: the text of each turn, with what a template puts around it; the last one ends where the answer begins.
    answer: the recorded one. head: what precedes the user's first words. tail: what follows the last message.
    """

    turns: tuple[str, ...]
    answer: str
    head: str
    tail: str


def build(
    tokenizer: Any,
    sample: Sample,
    task: TaskSettings,
    max_tokens: int,
    chat: Chat = "auto",
    system: str | None = None,
    evict_after: EvictAfter = "prompt",
) -> Prompt:
    """Truncate a prompt, put the chat template around it, tokenise it.

    The answer prefix follows the template, at the start of the answer. The prompt begins with the special tokens that
    the tokenizer puts before a text, as `tokenizer(prompt)` in LongBench's pred.py adds them, unless the template has
    them; the first token of a sequence is never doubled.

    With `evict_after="context"` the context is tokenised alone, so that it does not depend on the question. The
    question has the remaining tokens of the whole text, or its own where a token of the whole text crosses the border
    (`Prompt.border_tokens`).

    With truncation in the middle, the limit is the model's if the task's is larger, as in the benchmarks.

    A protocol may tokenise what follows the eviction as texts of their own, one per question (`tokenises_alone`).

    With `wraps_context` and `evict_after="context"` a prompt has three texts, each tokenised alone, as in kvpress and
    KVzip: the beginning of the template with the opening, the context, and the question with all that follows it. Only
    a template begins the sequence; a raw text begins with the first token.

    In a conversation (`Sample.earlier`) the eviction comes before or after the first question. What precedes a later
    question is what the template puts after an answer, so that the cache of one turn begins the next.

    Raises UserError for a prompt longer than `max_tokens`, or one that cannot be split or put into the template.
    """
    form = _Form(tokenizer, task, uses_template(tokenizer, chat, task.chat), system, evict_after)
    limit = max_tokens

    def built(most: int | None) -> Prompt:
        return read("a prompt", lambda: _build(form, sample, most))

    prompt = built(task.max_prompt_tokens)
    while prompt.tokens > max_tokens and task.truncation == "middle" and limit >= 2:
        prompt = built(limit)
        limit -= max(1, prompt.tokens - max_tokens)  # a truncated text may have more tokens, tokenised again
    if prompt.tokens > max_tokens:
        raise UserError(
            f"the prompt has {prompt.tokens} tokens, the model reads at most {max_tokens} before its answer; "
            "truncate it with task.truncation=middle, left or right and task.max_prompt_tokens, or use shorter "
            "prompts"
        )
    return prompt


@dataclass(frozen=True)
class _Form:
    """How the prompts of a task are made for a model. templated: within the chat template of the tokenizer."""

    tokenizer: Any
    task: TaskSettings
    templated: bool
    system: str | None
    evict_after: EvictAfter

    @property
    def wraps(self) -> bool:
        """Whether the template is put around the context, and each text is tokenised alone."""
        return self.task.wraps_context and self.evict_after == "context" and self.task.turns == "none"

    @property
    def closing(self) -> str:
        """The end of sequence, if it follows each answer."""
        return self.tokenizer.eos_token or "" if self.task.ends_answers and self.task.turns == "own" else ""


class _Texts(NamedTuple):
    """The texts of a prompt up to the first answer.

    prefill, question: read before the eviction and after it. head: what precedes the sample's own text. tail: what a
    template puts between the user's text and the answer. request, suffix: the end of `prefill` from the question on,
    and that after the user's text; empty if the question is not in it.
    """

    prefill: str
    question: str
    head: str
    tail: str
    request: str = ""
    suffix: str = ""


def _build(form: _Form, sample: Sample, limit: int | None) -> Prompt:
    """Return the prompt truncated to `limit` tokens; the template may add more."""
    tokenizer, task = form.tokenizer, form.task
    if task.turn_divider:
        texts = resolve_name(task.turn_divider)(tokenizer, form.templated, form.system, sample)
        return _of_turns(tokenizer, texts, form.evict_after)
    texts = _texts_of(form, sample, limit)
    in_template = form.wraps or (tokenizer.bos_token and tokenizer.bos_token in texts.head)
    opening, start = () if in_template else opening_of(tokenizer), texts.head + sample.context_prefix
    if form.wraps and sample.context_prefix and texts.prefill.startswith(start):
        ids = plain(tokenizer, start) + plain(tokenizer, texts.prefill.removeprefix(start))
    else:
        ids = after_opening(tokenizer, opening, texts.prefill)
    if not ids:
        raise UserError("the prompt has no tokens")
    half_kept = limit // 2 if task.truncation == "middle_tokens" and limit is not None and limit < len(ids) else 0
    if half_kept:
        ids = ids[:half_kept] + ids[-half_kept:]
    turns = _texts_of_turns(form, sample, texts.question)
    text, alone = texts.prefill + "".join(turns), task.tokenises_alone or form.wraps
    undivided = after_opening(tokenizer, opening, text) if form.wraps or any(turns) else ids
    separate = list[tuple[int, ...]]()
    if alone or task.turns == "own":
        separate = [_alone(tokenizer, turn, form.closing) if alone else continued(tokenizer, turn) for turn in turns]
        question = tuple(chain.from_iterable(separate))
    elif half_kept or undivided[: len(ids)] != ids:
        question = continued(tokenizer, "".join(turns))
    else:
        question = undivided[len(ids) :]
    return Prompt(
        ids,
        question,
        hashlib.sha256(text.encode()).hexdigest(),
        prefix_tokens=common_length(ids, after_opening(tokenizer, opening, start)),
        turn=plain(tokenizer, texts.tail),
        border_tokens=None if half_kept or task.turns == "own" else _border_tokens(undivided, ids + question),
        question_tokens=len(continued(tokenizer, texts.request)),
        suffix_tokens=len(continued(tokenizer, texts.suffix)),
        turns=tuple(separate) if task.turns == "own" else (),
    )


def _texts_of(form: _Form, sample: Sample, limit: int | None) -> _Texts:
    """Return the texts of a prompt, truncated to `limit` tokens."""
    tokenizer, task, system = form.tokenizer, form.task, form.system
    first, context = _turns_in(sample)[0], sample.context
    if form.templated and tokenizer.bos_token:
        context = context.removeprefix(tokenizer.bos_token)
    middle = task.decodes_joined, task.keeps_odd
    context, question = truncate(tokenizer, context, first.question, task.truncation, limit, *middle)
    messages = sample.messages if form.templated else ()
    if messages and task.truncation != "refuse":
        raise UserError(f"task.truncation={task.truncation}: messages are not truncated; use task.truncation=refuse")
    content, head, tail = "" if messages else context, (tokenizer.bos_token or "") if form.wraps else "", ""
    if form.templated:
        head, tail = around(tokenizer, system)
    if form.evict_after == "prompt":
        whole = render(tokenizer, system, content + question, messages) if form.templated else context + question
        suffix = tail + first.answer_prefix
        request = question + suffix if question else ""
        return _Texts(whole + first.answer_prefix, "", head, tail, request, suffix if tail else "")
    if first.question and not question:
        raise UserError(
            f"schedule.evict_after=context: with the middle truncated to {limit} tokens, no question is left to "
            "read after eviction; use schedule.evict_after=prompt, or more tokens if the model reads them "
            "(task.max_prompt_tokens)"
        )
    before, after = head + context, question
    if form.templated:
        before, after = (wrap if form.wraps else split)(tokenizer, system, content, question, messages)
    after += first.answer_prefix
    for part, name in ((context, "context to evict from"), (after, "question to read after the eviction")):
        if not part:
            raise UserError(f"schedule.evict_after=context: the sample has no {name}; use evict_after=prompt")
    return _Texts(before, after, head, tail)


def _turns_in(sample: Sample) -> tuple[Turn, ...]:
    """Return the questions of a conversation about one context, the sample's own last."""
    return (*sample.earlier, Turn(sample.question, None, 0, sample.answer_prefix))


def _texts_of_turns(form: _Form, sample: Sample, question: str) -> list[str]:
    """Return the text that is read before each answer, `question` before the first; a later one begins with the
    recorded answer, if any, to the question before it.
    """
    turns = [question]
    for previous, following in pairwise(_turns_in(sample)):
        answer, text = previous.answer or "", form.closing + following.question
        if form.templated:  # which parts turns itself
            answer = answer.removeprefix("\n")
            text = after_answer(form.tokenizer, form.system, following.question.removeprefix(GAP))
        turns.append(answer + text + following.answer_prefix)
    return turns


def _of_turns(tokenizer: Any, texts: TurnTexts, evict_after: EvictAfter) -> Prompt:
    """Return the prompt before a recorded answer, each of its turns tokenised alone, so that later ones change none
    before.

    With `evict_after="context"` the last turn, up to the answer, is what is read after the eviction.
    """
    first, *later = texts.turns
    opening, text = opening_of(tokenizer), "".join(texts.turns)
    parts = [after_opening(tokenizer, opening, first), *(continued(tokenizer, turn) for turn in later)]
    ids, last, has_question = tuple(chain.from_iterable(parts)), parts[-1], evict_after == "prompt"
    prefill_parts = parts if has_question else parts[:-1]
    return Prompt(
        tuple(chain.from_iterable(prefill_parts)),
        () if has_question else last,
        hashlib.sha256(text.encode()).hexdigest(),
        prefix_tokens=common_length(ids, after_opening(tokenizer, opening, texts.head)),
        turn=plain(tokenizer, texts.tail),
        border_tokens=_border_tokens(after_opening(tokenizer, opening, text), ids),
        question_tokens=len(last) if has_question else 0,
        suffix_tokens=len(continued(tokenizer, texts.tail)) if has_question else 0,
        blocks=tuple(map(len, prefill_parts)),
        answer=continued(tokenizer, texts.answer),
    )


def _border_tokens(undivided: tuple[int, ...], divided: tuple[int, ...]) -> int | None:
    """Return how many tokens of a text are others because it is divided; None if none are."""
    if divided == undivided:
        return None
    same = common_length(undivided, divided)
    same += common_length(undivided[same:][::-1], divided[same:][::-1])
    return max(len(undivided), len(divided)) - same


def _alone(tokenizer: Any, text: str, closing: str) -> tuple[int, ...]:
    """Return tokens of a text as if nothing preceded it; `closing`, the end of sequence, may begin it."""
    if closing and text.startswith(closing):
        return (tokenizer.eos_token_id, *plain(tokenizer, text.removeprefix(closing)))
    return plain(tokenizer, text)


def truncate(
    tokenizer: Any,
    context: str,
    question: str,
    truncation: Truncation,
    limit: int | None,
    decodes_joined: bool = False,
    keeps_odd: bool = False,
) -> tuple[str, str]:
    """Return context and question with `limit` tokens at most; `truncation` names the part that is dropped.

    middle: the middle of the whole prompt; its ends are decoded apart, as in LongBench's pred.py, or together
    (`decodes_joined`), as in InfiniteBench's truncate_by_tokens, which gives another text where they meet. Of an odd
    limit a token is lost, but not with `keeps_odd`, as in LongBench v2, where the second end has it. left: the
    beginning of the context. right: its end, as in kvpress (which counts the head of the chat template too). refuse:
    nothing. middle_tokens: the middle of what is read before the eviction, special tokens included, after it was
    tokenised (`build`), as in SCBench's truncate_by_tokens.

    `left` and `right` count the context alone, so that all questions of a context share its truncated form; `middle`
    and `refuse` count context and question. Truncated text is decoded from tokens and may have a few more when it is
    tokenised again. If `middle` reaches into the question, everything is returned as context.

    Raises UserError for a prompt above the limit with `refuse`.
    """
    if limit is None or truncation == "middle_tokens":
        return context, question
    if truncation == "middle":
        return _middle(tokenizer, context, question, limit, decodes_joined, keeps_odd)
    if truncation == "refuse":
        tokens = len(tokenizer(context + question).input_ids)
        if tokens > limit:
            raise UserError(
                f"the prompt has {tokens} tokens, more than task.max_prompt_tokens={limit}, and task.truncation=refuse "
                "truncates none: use middle, left or right"
            )
        return context, question
    ids = tokenizer(context, add_special_tokens=False).input_ids
    if len(ids) > limit:
        context = tokenizer.decode(ids[:limit] if truncation == "right" else ids[-limit:])
    return context, question


def _middle(
    tokenizer: Any, context: str, question: str, limit: int, decodes_joined: bool, keeps_odd: bool
) -> tuple[str, str]:
    """Drop the middle as the benchmarks do: special tokens count and are dropped."""
    ids, half = tokenizer(context + question).input_ids, limit // 2
    if len(ids) <= limit:
        return context, question
    first, last = ids[:half], ids[-(limit - half if keeps_odd else half) :]
    parts = [first + last] if decodes_joined else [first, last]
    text = "".join(tokenizer.decode(part, skip_special_tokens=True) for part in parts)
    return (text.removesuffix(question), question) if text.endswith(question) else (text, "")
