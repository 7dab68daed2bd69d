"""Texts as token ids: what a tokenizer puts before a text, and how parts of a text are tokenised."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import pairwise, takewhile
from typing import Any, TypeVar

from kvbench.models.loading.spec import Chat, ModelSpec
from kvbench.models.prompts.chat import around, uses_template
from kvbench.support.bounded import within
from kvbench.support.errors import OverLimit, UserError, refusing_panics
from kvbench.tasks.task import Ending, InvalidSample, Sample, Task, TaskSettings

MOST_SECONDS = 300
"""Of a tokenizer for one text or prompt: a million tokens take ten."""
Result = TypeVar("Result")


def read(what: str, call: Callable[[], Result]) -> Result:
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
        counts, key = _counts(self.tokenizer), blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        if key not in counts:
            counts[key] = len(self.encode(text, special=False))
        return counts[key]

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids; `special`: with the special tokens that the tokenizer adds."""
        return read("a text", lambda: list(self.tokenizer(text, add_special_tokens=special).input_ids))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special ones spelled out."""
        return self.tokenizer.decode(list(ids))

    def starts(self, text: str) -> list[int]:
        """Return the character at which each token starts, special ones too. Raises UserError for a slow tokenizer."""
        try:
            offsets = read("a text", lambda: self.tokenizer(text, return_offsets_mapping=True).offset_mapping)
            return [start for start, _ in offsets]
        except NotImplementedError:
            raise UserError("the model's tokenizer does not say where its tokens start: use a fast tokenizer") from None


@cache
def _counts(tokenizer: Any) -> dict[bytes, int]:
    """Return the numbers of tokens of texts, by hash, for later counts: a run makes each sample twice."""
    return {}


@lru_cache(16)  # all questions about a context begin with it
def plain(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return tokens of a text without special ones, also from tokenizers that always begin with the first one."""
    if not text:
        return ()
    ids = tuple(tokenizer(text, add_special_tokens=False).input_ids)
    starts_with_bos = bool(ids) and ids[0] == tokenizer.bos_token_id and not text.startswith(tokenizer.bos_token)
    return ids[1:] if starts_with_bos else ids


def opening_of(tokenizer: Any) -> tuple[int, ...]:
    """Return the special tokens that a tokenizer puts before a text, without those after it: an answer follows."""
    text = "a"
    bare, ids = plain(tokenizer, text), tuple(tokenizer(text).input_ids)
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return ids[:start]
    raise UserError(f"the tokenizer reads {text!r} otherwise among special tokens: {ids} holds no {bare}")


def after_opening(tokenizer: Any, opening: tuple[int, ...], text: str) -> tuple[int, ...]:
    """Return tokens of a text after the special tokens `opening`, which are there only once."""
    ids, bos = plain(tokenizer, text), tokenizer.bos_token_id
    if ids[: len(opening)] != opening:
        ids = opening + ids
    while bos is not None and ids[:2] == (bos, bos):
        ids = ids[1:]
    return ids


def continued(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Return tokens of a text that follows another, without the blank that some tokenizers put before a text."""
    if not text:
        return ()
    for other in ("\n", "a", "."):
        before, ids = plain(tokenizer, other), plain(tokenizer, other + text)
        if ids[: len(before)] == before:
            return ids[len(before) :]
    return plain(tokenizer, text)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


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
    return len(after_opening(tokenizer, opening_of(tokenizer), head)) + len(plain(tokenizer, tail))


def samples_of(
    tokenizer: Any, model: ModelSpec, task: Task, numbers: Collection[int]
) -> Iterator[Sample | InvalidSample]:
    """Yield the samples of a task with these numbers, in ascending order, as the tokenizer of a model makes them."""
    template = template_tokens(tokenizer, model.chat, model.system, task.chat)
    yield from task.numbered_answers(TokensOf(tokenizer, template), numbers)


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
