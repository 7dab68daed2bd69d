"""A transcript: what a model is given for one prompt, by hash and figures, and the names of the cases."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LIMITS = (31500, 201)
"""Of the prompt where the middle is dropped: the short row fits, the long one does not, and the limit is odd."""

SCBENCH_LIMITS = (10_000, 31)
"""Of what is read before the first answer of SCBench's rows."""
RULER_TOKENS = 2048
"""The context length of RULER's prompts."""

NOLIMA_TOKENS = 200
"""Of a book of NoLiMa around its needle."""


@dataclass(frozen=True)
class Transcript:
    """sha256: of the ids as JSON. tokens: their number. context: how many of them precede the eviction. stop: ids that
    end an answer, None for the model's own. max_new_tokens, min_new_tokens: of the answer.
    """

    sha256: str
    tokens: int
    context: int
    stop: tuple[int, ...] | None
    max_new_tokens: int
    min_new_tokens: int = 0

    def fields(self) -> list[Any]:
        """As a list for JSON."""
        return [
            self.sha256,
            self.tokens,
            self.context,
            self.stop and list(self.stop),
            self.max_new_tokens,
            self.min_new_tokens,
        ]


def transcript(
    ids: Sequence[int], context: int | None, stop: Iterable[int] | None, max_new_tokens: int, min_new_tokens: int = 0
) -> Transcript:
    """Of the ids of a prompt; `context` is None where the whole prompt precedes the eviction."""
    numbers = [int(number) for number in ids]
    digest = hashlib.sha256(json.dumps(numbers).encode()).hexdigest()
    ends = None if stop is None else tuple(sorted({int(number) for number in stop}))
    split = len(numbers) if context is None else context
    return Transcript(digest, len(numbers), split, ends, max_new_tokens, min_new_tokens)


def from_fields(fields: Sequence[Any]) -> Transcript:
    """The transcript of a list of `Transcript.fields`."""
    sha256, tokens, context, stop, most, least = fields
    return Transcript(sha256, tokens, context, None if stop is None else tuple(stop), most, least)


def case(task: str, family: str, template: str, number: int) -> str:
    """The name of a case: a task, a tokenizer, a chat template and the number of the prompt."""
    return f"{task} {family} {template} {number}"
