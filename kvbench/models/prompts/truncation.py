"""What is done with a prompt that is too long, before any chat template is put around it.

middle    LongBench's pred.py: the whole prompt, its first and last half of the tokens that it may have
left      the beginning of the context goes
right     the end of the context goes, as in kvpress (which counts the head of the chat template too)
refuse    nothing goes: the sample fails
"""

from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.task import Truncation


def truncate(tokenizer: Any, context: str, question: str, truncation: Truncation, limit: int | None) -> tuple[str, str]:
    """Context and question of at most `limit` tokens.

    `left` and `right` count the context alone, so that questions of one context share what is left of it; `middle` and
    `refuse` count context and question. Cut text is decoded from tokens and may have a few more when it is read again.
    Where `middle` reaches into the question everything is returned as context.

    Raises ValueError for a prompt above the limit that must not be cut.
    """
    if limit is None:
        return context, question
    if truncation == "middle":
        return _middle(tokenizer, context, question, limit)
    if truncation == "refuse":
        tokens = len(tokenizer(context + question).input_ids)
        if tokens > limit:
            raise UserError(
                f"the prompt has {tokens} tokens, more than task.max_prompt_tokens={limit}, and task.truncation=refuse "
                "cuts none: use middle, left or right"
            )
        return context, question
    ids = tokenizer(context, add_special_tokens=False).input_ids
    if len(ids) > limit:
        context = tokenizer.decode(ids[:limit] if truncation == "right" else ids[-limit:])
    return context, question


def _middle(tokenizer: Any, context: str, question: str, limit: int) -> tuple[str, str]:
    """The arithmetic of pred.py: special tokens count and are dropped, an odd limit loses a token."""
    ids, half = tokenizer(context + question).input_ids, limit // 2
    if len(ids) <= limit:
        return context, question
    text = "".join(tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:half], ids[-half:]))
    if not text.endswith(question):
        return text, ""
    return text[: len(text) - len(question)], question
