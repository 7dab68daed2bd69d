"""The two tasks of RULER v2 that need no data: numbers of a key.

    Some special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you ...
    One of the special magic numbers for bitter-moth is: 4083993832.
    ...
    What are all the special magic numbers for lucid-barn mentioned in the provided text? The special magic numbers for
    lucid-barn mentioned in the provided text are

Prompts follow https://github.com/NVIDIA-NeMo/Skills at 991a743, nemo_skills/dataset/ruler2/prepare_niah.py.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from kvbench.extras.ruler_v2.ruler_v2 import RulerV2, drawn_number
from kvbench.extras.ruler_v2.scores import Match
from kvbench.support.errors import UserError
from kvbench.tasks.ruler.haystack import inserted
from kvbench.tasks.ruler.niah import ANSWER_PREFIX, NEEDLE, QUESTION
from kvbench.tasks.ruler.task import CountTokens, RulerPrompt, bisected_by_rate, fitting
from kvbench.tasks.ruler.words import keys
from kvbench.tasks.task import require_positive

CONTEXT = (
    "{some} special magic {kind} {are} hidden within the following text. Make sure to memorize {them}."
    " I will quiz you about the {kind} afterwards.\n{haystack}"
)
ONE = {"some": "A", "kind": "number", "are": "is", "them": "it"}
SEVERAL = {"some": "Some", "kind": "numbers", "are": "are", "them": "them"}
DIGITS = 10
STEP = 5
"""Lines that the haystack has at least, and fewer that it has after a prompt that is too long."""


@dataclass(frozen=True, kw_only=True)
class Numbers(RulerV2):
    """The numbers of one key in a haystack of such lines, in which each key has `num_values` numbers."""

    num_values: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "num_values")
        if self.num_values > self._step:
            raise UserError(
                f"task.num_values={self.num_values} of {self.name}: at most {self._step} needles fit the smallest "
                f"haystack at task.context_length={self.context_length}"
            )

    @property
    def match(self) -> Match:
        return "all"

    @property
    def _step(self) -> int:
        return STEP if self.context_length < 4096 else max(STEP, self.num_values)

    def _prompts(self, count_tokens: CountTokens) -> Iterator[RulerPrompt]:
        draw, step, room = partial(self._draw, random.Random(self.seed)), self._step, self.context_length
        size = bisected_by_rate(draw, count_tokens, step, room, room)
        while True:
            yield fitting(draw, count_tokens, size, step, room, self.num_values)

    def _draw(self, rng: random.Random, size: int) -> RulerPrompt:
        """Draw a prompt with `size` lines besides the needles."""
        key, values = rng.choice(keys()), tuple(drawn_number(rng, DIGITS) for _ in range(self.num_values))
        needles = [_line(key, value) for value in values]
        random.Random(self.seed).shuffle(needles)  # a fresh generator each time: always the same permutation
        if self.num_values == 1:
            lines = [_line(rng.choice(keys()), drawn_number(rng, DIGITS)) for _ in range(size)]
        else:
            numbers = [drawn_number(rng, DIGITS) for _ in range(size)]
            others = [rng.choice(keys()) for _ in range(-(-size // self.num_values))] * self.num_values
            lines = [_line(other, number) for other, number in zip(others, numbers, strict=False)]
            rng.shuffle(lines)
        text = "\n".join(inserted(needles, lines, rng))
        rng.sample(range(1), 1)  # which key is asked for
        words = ONE if self.num_values == 1 else SEVERAL
        question, prefix = QUESTION, ANSWER_PREFIX
        if self.num_values == 1:
            question, prefix = QUESTION.replace("are all", "is"), ANSWER_PREFIX.replace("are", "is")
        named = {"kind": words["kind"], "query": key}
        return RulerPrompt(
            CONTEXT.format(**words, haystack=text), question.format(**named), prefix.format(**named), values
        )


def _line(key: str, value: str) -> str:
    return NEEDLE.format(kind="numbers", key=key, value=value)
