"""Generated rows of InfiniteBench: passkey, number_string and kv_retrieval, in any length.

    context    The grass is green. ... The pass key is 71432. Remember it. 71432 is the pass key. The grass is ...
    input      What is the pass key?
    answer     ["71432"]

Follows data/construct_synthetic_dataset.py of https://github.com/OpenBMB/InfiniteBench (89b7855), joined by blanks as
the published rows are. The official file sets no seed: these are rows of the same kind, not the same rows. Published
contexts have 5220 lines of noise or 2500 key-value pairs.

Differences: the needle lies at one of 59 depths, and successive samples visit the depths in an order that covers the
whole range early; officially rows are ordered by depth, in kv_retrieval one of 500. Prompts, split and scorers are
those of the published rows (`task.py`).
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvbench.support.errors import UserError
from kvbench.tasks.infinitebench.rows import fields
from kvbench.tasks.infinitebench.task import PROMPTS, InfiniteBenchTask
from kvbench.tasks.ruler.haystack import NOISE
from kvbench.tasks.ruler.niah import DRAWS
from kvbench.tasks.task import Tokens, require_choice, require_positive
from kvbench.tasks.templates import fill

HIDDEN = {"passkey": "pass key", "number_string": "sequence of digits"}
DEPTHS = 59
STRIDE = 36  # steps from depth to depth, about the golden section of DEPTHS
LONGEST = 2**17  # lines or key-value pairs: a tokenizer may make one token of any text


@dataclass(frozen=True, kw_only=True)
class SyntheticInfiniteBench(InfiniteBenchTask):
    """Generated rows of one task. `context_length` is in tokens of the model, template and answer included."""

    context_length: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "member", (*HIDDEN, "kv_retrieval"))
        require_positive(self, "context_length")

    @property
    def version(self) -> str:
        return f"infinitebench-89b7855-synthetic-{self.templates}.2"

    @property
    def files(self) -> tuple[str, ...]:
        return (PROMPTS,)

    def rows(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Rows as long as `context_length` allows. Raises UserError for a negative index or if no row fits."""
        if any(index < 0 for index in indices):
            raise UserError(f"sample indices start at 0, got {min(indices)}")
        template, size = self._template(), 1

        def tokens(row: Mapping[str, Any]) -> int:
            prompt = "".join(fill(template, fields(self.member, row), PROMPTS))
            return count_tokens(prompt) + self.max_new_tokens

        for index in sorted(indices):
            row_of = partial(self._row, index)
            size = _largest(lambda size, row_of=row_of: tokens(row_of(size)), self.context_length, max(size, 1))
            if size == 0:
                raise UserError(
                    f"task.context_length={self.context_length} cannot hold {self.name}: "
                    f"sample {index} takes {tokens(row_of(1))}"
                )
            yield index, row_of(size)

    def _row(self, index: int, size: int) -> dict[str, Any]:
        """The row of a sample with `size` lines of noise or key-value pairs."""
        rng, depth = random.Random(f"{self.seed} {self.member} {index}"), index * STRIDE % DEPTHS
        if self.member == "kv_retrieval":
            records: dict[str, str] = {}
            while len(records) < size:
                value, key = DRAWS["uuids"](rng), DRAWS["uuids"](rng)
                records[key] = value
            return retrieval(records, list(records)[(size - 1) * depth // (DEPTHS - 1)])
        digits = [str(rng.randint(0, 9)) for _ in range(5)]
        if self.member == "number_string":
            for extra in range(5):
                place = rng.randint(0, 4 + extra)
                digits.insert(place, digits[place])
        return hidden(HIDDEN[self.member], "".join(digits), size, size * depth // (DEPTHS - 1))


def hidden(name: str, digits: str, lines: int, before: int) -> dict[str, Any]:
    """The row whose digits follow `before` of `lines` lines."""
    needle = f"The {name} is {digits}. Remember it. {digits} is the {name}."
    context = " ".join([NOISE] * before + [needle] + [NOISE] * (lines - before))
    return {"context": context, "input": f"What is the {name}?", "answer": [digits]}


def retrieval(records: Mapping[str, str], key: str) -> dict[str, Any]:
    """The row that asks for the value of a key."""
    listed = ", ".join(f'"{name}": "{value}"' for name, value in records.items())
    return {
        "context": f"JSON data:\n{{{listed}}}",
        "input": f'\nKey: "{key}"\nThe value associated with the specified key is: ',
        "answer": [records[key]],
    }


def _largest(tokens: Callable[[int], int], limit: int, guess: int) -> int:
    """The largest size of at most `limit` tokens, 0 if there is none; few calls from a good guess."""
    low, high, step = guess, guess, 1
    while low and tokens(low) > limit:
        low, high, step = max(0, low - step), low, 2 * step
    if low == guess:
        while high < LONGEST and tokens(high + step) <= limit:
            low, high, step = high + step, high + step, 2 * step
        high += step
    return low + bisect_right(range(low + 1, high), limit, key=tokens)
