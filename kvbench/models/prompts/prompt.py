"""From the text of a sample to the token ids that a model reads."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pkgutil import resolve_name
from typing import Any, TypeVar

from kvbench.eviction.schedule import EvictAfter
from kvbench.models.loading.spec import Chat
from kvbench.models.prompts.chat import after_answer, around, render, split, uses_template, wrap
from kvbench.support.deadline import within
from kvbench.support.errors import OverLimit, UserError, refusing_panics
from kvbench.tasks.task import GAP, Ending, Sample, TaskSettings, Truncation, Turn

MOST_SECONDS = 300
"""Of a tokenizer for one text or prompt: a million tokens take ten."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Prompt:
    """Token ids that are read before the eviction (`context`) and after it (`question`).

    `context` ends with the question too if the eviction follows it. sha256: of the final text.

    prefix_tokens: the first tokens of `context`, which precede the content of the sample: special tokens, the system
    turn, the opening of the user's turn and of the task's contexts. suffix_tokens: its newest tokens, which follow the
    user's text: the end of a chat template and the answer prefix, tokenised alone; 0 without a template.
    question_tokens: its newest tokens from the question on, tokenised alone; 0 if `context` has no question.

    turn: the tokens of a chat template between the user's text and the answer. border_tokens: how many tokens of the
    whole text are others because it is divided; None if `context` and `question` are its tokens. turns: if answers of
    the model's own lie between the tokens of `question`, those before each answer, tokenised alone. blocks: numbers of
    tokens of `context` after which a schedule evicts turn by turn. answer: tokens of a recorded answer, which is read.
    """

    context: tuple[int, ...]
    question: tuple[int, ...]
    sha256: str
    prefix_tokens: int = 0
    turn: tuple[int, ...] = ()
    border_tokens: int | None = None
    question_tokens: int = 0
    suffix_tokens: int = 0
    turns: tuple[tuple[int, ...], ...] = ()
    blocks: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return len(self.context) + len(self.question)

    @property
    def first_question(self) -> tuple[int, ...]:
        """The tokens between `context` and the first answer."""
        return self.turns[0] if self.turns else self.question


@dataclass(frozen=True)
class TurnTexts:
    """A prompt with a recorded answer, divided where its turns end (`kvbench.tasks.task.TaskSettings.turn_texts`).

    turns: the text of each turn, with what a template puts around it; the last one ends where the answer begins.
    answer: the recorded one. head: what precedes the user's first words. tail: what follows the last message.
    """

    turns: tuple[str, ...]
    answer: str
    head: str
    tail: str


def _read(what: str, call: Callable[[], Result]) -> Result:
    """Call a tokenizer and return its result. Raises UserError where it panics, OverLimit after `MOST_SECONDS`."""
    with refusing_panics(f"the model's tokenizer refuses {what}"):
        try:
            return within(MOST_SECONDS, call)
        except TimeoutError:
            raise OverLimit(
                f"the model's tokenizer takes more than {MOST_SECONDS} s for {what}, probably because of a pattern in "
                "its tokenizer.json: use the tokenizer of the model's makers"
            ) from None


@dataclass(frozen=True)
class TokensOf:
    """A tokenizer with the interface that tasks use (`kvbench.tasks.task.TokenCounter`).

    template: tokens that a chat template puts around a prompt.
    """

    tokenizer: Any
    template: int = 0

    def __call__(self, text: str, /) -> int:
        """Return number of tokens of a text without special ones: how benchmarks measure their contexts."""
        return len(self.encode(text, special=False))

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids; `special`: with the special tokens that the tokenizer adds."""
        return _read("a text", lambda: list(self.tokenizer(text, add_special_tokens=special).input_ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special ones spelled out."""
        return self.tokenizer.decode(list(ids))

    def starts(self, text: str) -> list[int]:
        """Return the character at which each token starts, special ones too. Raises UserError for a slow tokenizer."""
        try:
            offsets = _read("a text", lambda: self.tokenizer(text, return_offsets_mapping=True).offset_mapping)
            return [start for start, _ in offsets]
        except NotImplementedError:
            raise UserError("the model's tokenizer does not say where its tokens start: use a fast tokenizer") from None


def token_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Return the text of each token, with the blank before a word that tokenizers drop at the start of a text."""
    alone = [tokenizer.decode([token]) for token in ids]
    after = [tokenizer.decode(list(pair))[len(before) :] for pair, before in zip(pairwise(ids), alone, strict=False)]
    return (*alone[:1], *after)


def template_tokens(tokenizer: Any, chat: Chat, system: str | None, of_task: bool) -> int:
    """Return tokens of the chat template around a user's text, special tokens included; 0 for a raw prompt."""
    if not uses_template(tokenizer, chat, of_task):
        return 0
    head, tail = around(tokenizer, system)
    return len(_after_opening(tokenizer, _opening(tokenizer), head)) + len(plain(tokenizer, tail))


def stop_tokens(tokenizer: Any, texts: Iterable[str]) -> frozenset[int]:
    """Return the tokens that end an answer at these texts: the last one of each text's encoding, as LongBench's pred.py
    does.

    Raises UserError for a text of several tokens: the last of them would also end answers that lack the rest.
    """
    ids = set()
    for text in texts:
        *_, last = tokenizer(text, add_special_tokens=False).input_ids
        if tokenizer.decode([last]) != text:
            raise UserError(
                f"task.stop={text!r} is not one token of the model's tokenizer: only one token ends an answer"
            )
        ids.add(last)
    return frozenset(ids)


def ends(tokenizer: Any, task: TaskSettings, model_stop: frozenset[int]) -> frozenset[int]:
    """Return the tokens that end an answer: the task's, and the model's or (`stop_replaces`) the tokenizer's."""
    return _own_ends(tokenizer, task, model_stop) | stop_tokens(tokenizer, task.stop)


def ending(tokenizer: Any, task: TaskSettings, model_stop: frozenset[int], ids: Sequence[int]) -> Ending:
    """Why an answer of these tokens, with the one that ends it, has no more of them."""
    last = set(ids[-1:])
    if last & _own_ends(tokenizer, task, model_stop):
        return "end"
    return "stop" if last & stop_tokens(tokenizer, task.stop) else "limit"


def _own_ends(tokenizer: Any, task: TaskSettings, model_stop: frozenset[int]) -> frozenset[int]:
    """Return the tokens that end an answer without the task's."""
    if not task.stop_replaces:
        return model_stop
    return frozenset() if tokenizer.eos_token_id is None else frozenset([tokenizer.eos_token_id])


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
    limit = max_tokens

    def built(most: int | None) -> Prompt:
        return _read("a prompt", lambda: _build(tokenizer, sample, task, most, chat, system, evict_after))

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


def _build(
    tokenizer: Any,
    sample: Sample,
    task: TaskSettings,
    limit: int | None,
    chat: Chat,
    system: str | None,
    evict_after: EvictAfter,
) -> Prompt:
    """Return the prompt truncated to `limit` tokens; the template may add more."""
    templated = uses_template(tokenizer, chat, task.chat)
    if task.turn_texts:
        return _of_turns(tokenizer, resolve_name(task.turn_texts)(tokenizer, templated, system, sample), evict_after)
    context = sample.context
    if templated and tokenizer.bos_token:
        context = context.removeprefix(tokenizer.bos_token)
    first, *later = (*sample.earlier, Turn(sample.question, None, 0, sample.answer_prefix))
    middle = task.decodes_joined, task.keeps_odd
    context, question = truncate(tokenizer, context, first.question, task.truncation, limit, *middle)
    turns = sample.messages if templated else ()
    if turns and task.truncation != "refuse":
        raise UserError(f"task.truncation={task.truncation}: messages are not truncated; use task.truncation=refuse")
    content = "" if turns else context
    apart = task.wraps_context and evict_after == "context" and task.turns == "none"
    begin = tokenizer.bos_token or "" if apart and not templated else ""
    if evict_after == "prompt":
        before = render(tokenizer, system, content + question, turns) if templated else context + question
        before, after = before + first.answer_prefix, ""
    else:
        if first.question and not question:
            raise UserError(
                f"schedule.evict_after=context: with the middle truncated to {limit} tokens, no question is left to "
                "read after eviction; use schedule.evict_after=prompt, or more tokens if the model reads them "
                "(task.max_prompt_tokens)"
            )
        divide = wrap if apart else split
        before, after = (
            divide(tokenizer, system, content, question, turns) if templated else (begin + context, question)
        )
        after += first.answer_prefix
        for part, name in ((context, "context to evict from"), (after, "question to read after the eviction")):
            if not part:
                raise UserError(f"schedule.evict_after=context: the sample has no {name}; use evict_after=prompt")
    head, turn = around(tokenizer, system) if templated else (begin, "")
    opening = () if apart or (tokenizer.bos_token and tokenizer.bos_token in head) else _opening(tokenizer)
    ids = _after_opening(tokenizer, opening, before)
    if apart and sample.context_prefix and before.startswith(head + sample.context_prefix):
        start = head + sample.context_prefix
        ids = plain(tokenizer, start) + plain(tokenizer, before.removeprefix(start))
    if not ids:
        raise UserError("the prompt has no tokens")
    untruncated = ids
    if task.truncation == "middle_tokens" and limit is not None and len(ids) > limit:
        ids = ids[: limit // 2] + ids[-(limit // 2) :]
    request_text = question + turn + first.answer_prefix if question and evict_after == "prompt" else ""
    closing = tokenizer.eos_token or "" if task.ends_answers and task.turns == "own" else ""
    texts = [after]
    for previous, following in pairwise((first, *later)):
        answer, text = previous.answer or "", closing + following.question
        if templated:  # which parts turns itself
            answer = answer.removeprefix("\n")
            text = after_answer(tokenizer, system, following.question.removeprefix(GAP))
        texts.append(answer + text + following.answer_prefix)
    after, border_tokens, separate = "".join(texts), None, ()
    undivided = _after_opening(tokenizer, opening, before + after)
    alone = task.tokenises_alone or apart
    if alone or task.turns == "own":
        parts = (_alone(tokenizer, text, closing) if alone else _continued(tokenizer, text) for text in texts)
        separate = tuple(parts)
        question_ids = tuple(chain.from_iterable(separate))
    elif len(ids) < len(untruncated) or undivided[: len(ids)] != ids:
        question_ids = _continued(tokenizer, after)
    else:
        question_ids = undivided[len(ids) :]
    if task.turns != "own":
        separate = ()
        if len(ids) == len(untruncated):
            border_tokens = _border_tokens(undivided, ids + question_ids)
    return Prompt(
        ids,
        question_ids,
        hashlib.sha256((before + after).encode()).hexdigest(),
        _common_length(ids, _after_opening(tokenizer, opening, head + sample.context_prefix)),
        plain(tokenizer, turn),
        border_tokens,
        len(_continued(tokenizer, request_text)),
        len(_continued(tokenizer, turn + first.answer_prefix)) if turn and evict_after == "prompt" else 0,
        separate,
    )


def _of_turns(tokenizer: Any, texts: TurnTexts, evict_after: EvictAfter) -> Prompt:
    """Return the prompt before a recorded answer, each of its turns tokenised alone, so that later ones change none
    before.

    With `evict_after="context"` the last turn, up to the answer, is what is read after the eviction.
    """
    first, *later = texts.turns
    opening, text = _opening(tokenizer), "".join(texts.turns)
    parts = [_after_opening(tokenizer, opening, first), *(_continued(tokenizer, turn) for turn in later)]
    ids, last = tuple(chain.from_iterable(parts)), parts[-1]
    before = parts if evict_after == "prompt" else parts[:-1]
    return Prompt(
        tuple(chain.from_iterable(before)),
        () if evict_after == "prompt" else last,
        hashlib.sha256(text.encode()).hexdigest(),
        _common_length(ids, _after_opening(tokenizer, opening, texts.head)),
        plain(tokenizer, texts.tail),
        _border_tokens(_after_opening(tokenizer, opening, text), ids),
        len(last) if evict_after == "prompt" else 0,
        len(_continued(tokenizer, texts.tail)) if evict_after == "prompt" else 0,
        blocks=tuple(map(len, before)),
        answer=_continued(tokenizer, texts.answer),
    )


def _border_tokens(undivided: tuple[int, ...], divided: tuple[int, ...]) -> int | None:
    """Return how many tokens of a text are others because it is divided; None if none are."""
    if divided == undivided:
        return None
    same = _common_length(undivided, divided)
    same += _common_length(undivided[same:][::-1], divided[same:][::-1])
    return max(len(undivided), len(divided)) - same


def begin(tokenizer: Any, text: str, tokens: int) -> Prompt:
    """Return the first `tokens` tokens of a raw text, including those that the tokenizer puts before a text.

    `sha256`: of the ids, eight bytes each, because a token border need not be one in the text. Raises UserError
    for a text without a second token: the first has no likelihood.
    """
    opening = _opening(tokenizer)
    ids = _after_opening(tokenizer, opening, text)[:tokens]
    if len(ids) < 2:
        raise UserError(f"the text has no token to score: it is {text[:20]!r}")
    digest = hashlib.sha256(b"".join(token.to_bytes(8, "little") for token in ids))
    return Prompt(ids, (), digest.hexdigest(), _common_length(ids, opening))


def begin_continuation(tokenizer: Any, sample: Sample, context_tokens: int, tokens: int) -> Prompt:
    """Return a text that follows another: the first `context_tokens` tokens of the context and the answer prefix are
    read before the eviction, the first `tokens` tokens of the question after it; each is tokenised separately.

    Tokens that the tokenizer puts before a text count as given. Raises UserError if either part has no token.
    """
    opening = _opening(tokenizer)
    before = _after_opening(tokenizer, opening, sample.context)[:context_tokens]
    after = plain(tokenizer, sample.question)[:tokens]
    if len(before) == len(opening) or not after:
        raise UserError(
            f"there is no token to {'score' if after == () else 'read before it'}: {sample.question[:20]!r}"
        )
    ids = before + plain(tokenizer, sample.answer_prefix)
    digest = hashlib.sha256(b"".join(token.to_bytes(8, "little") for token in ids + after))
    return Prompt(ids, after, digest.hexdigest(), _common_length(ids, opening))


def plain(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return tokens of a text without special ones, even from tokenizers that always add the first token of a
    sequence.
    """
    if not text:
        return ()
    ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
    starts_with_bos = bool(ids) and ids[0] == tokenizer.bos_token_id and not text.startswith(tokenizer.bos_token)
    return ids[1:] if starts_with_bos else ids


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _opening(tokenizer: Any) -> tuple[int, ...]:
    """Return the special tokens that a tokenizer puts before a text, without those after it: an answer follows."""
    text = "a"
    bare, ids = plain(tokenizer, text), tuple(tokenizer(text).input_ids)
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return ids[:start]
    raise UserError(f"the tokenizer reads {text!r} otherwise among special tokens: {ids} holds no {bare}")


def _after_opening(tokenizer: Any, opening: tuple[int, ...], text: str) -> tuple[int, ...]:
    """Return tokens of a text after the special tokens `opening`, which are there only once."""
    ids, bos = plain(tokenizer, text), tokenizer.bos_token_id
    if ids[: len(opening)] != opening:
        ids = opening + ids
    while bos is not None and ids[:2] == (bos, bos):
        ids = ids[1:]
    return ids


def _continued(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return tokens of a text that follows another, without the blank that some tokenizers put before a text
    (Metaspace).
    """
    if not text:
        return ()
    for other in ("\n", "a", "."):
        before, ids = plain(tokenizer, other), plain(tokenizer, other + text)
        if ids[: len(before)] == before:
            return ids[len(before) :]
    return plain(tokenizer, text)


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
    """Context and question truncated to `limit` tokens; `truncation` names the part that is dropped.

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
    """As in the benchmarks: special tokens count and are dropped."""
    ids, half = tokenizer(context + question).input_ids, limit // 2
    if len(ids) <= limit:
        return context, question
    first, last = ids[:half], ids[-(limit - half if keeps_odd else half) :]
    parts = [first + last] if decodes_joined else [first, last]
    text = "".join(tokenizer.decode(part, skip_special_tokens=True) for part in parts)
    return (text.removesuffix(question), question) if text.endswith(question) else (text, "")
