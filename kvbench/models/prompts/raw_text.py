"""Raw texts as prompts: no template, no question, and a number of tokens that is known."""

import hashlib
from typing import Any

from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import after_opening, common_length, opening_of, plain
from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample


def begin(tokenizer: Any, text: str, tokens: int) -> Prompt:
    """Return the first `tokens` tokens of a raw text, including those that the tokenizer puts before a text.

    `sha256`: of the ids, eight bytes each, because a token border need not be one in the text. Raises UserError
    for a text without a second token: the first has no likelihood.
    """
    opening = opening_of(tokenizer)
    ids = after_opening(tokenizer, opening, text)[:tokens]
    if len(ids) < 2:
        raise UserError(f"the text has no token to score: it is {text[:20]!r}")
    digest = hashlib.sha256(b"".join(token.to_bytes(8, "little") for token in ids))
    return Prompt(ids, (), digest.hexdigest(), common_length(ids, opening))


def begin_continuation(tokenizer: Any, sample: Sample, context_tokens: int, tokens: int) -> Prompt:
    """Return a text that follows another: the first `context_tokens` tokens of the context and the answer prefix are
    read before the eviction, the first `tokens` tokens of the question after it; each is tokenised separately.

    Tokens that the tokenizer puts before a text count as given. Raises UserError if either part has no token.
    """
    opening = opening_of(tokenizer)
    before = after_opening(tokenizer, opening, sample.context)[:context_tokens]
    after = plain(tokenizer, sample.question)[:tokens]
    if len(before) == len(opening) or not after:
        raise UserError(
            f"there is no token to {'score' if after == () else 'read before it'}: {sample.question[:20]!r}"
        )
    ids = before + plain(tokenizer, sample.answer_prefix)
    digest = hashlib.sha256(b"".join(token.to_bytes(8, "little") for token in ids + after))
    return Prompt(ids, after, digest.hexdigest(), common_length(ids, opening))
