"""The two tasks of RULER v2 that need no data. https://github.com/NVIDIA-NeMo/Skills, branch chsieh/ruler2, at 991a743

    Some special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you ...
    One of the special magic numbers for bitter-moth is: 4083993832.
    ...
    What are all the special magic numbers for lucid-barn mentioned in the provided text? The special magic numbers for
    lucid-barn mentioned in the provided text are

Prompts follow nemo_skills/dataset/ruler2/prepare_niah.py, with the arguments of prepare.py and the same draws.
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from kvbench.support.errors import UserError
from kvbench.tasks.ruler.haystack import inserted
from kvbench.tasks.ruler.niah import ANSWER_PREFIX, NEEDLE, QUESTION
from kvbench.tasks.ruler.task import (
    CountTokens,
    DoesNotFit,
    Prompt,
    bisected_by_rate,
    fitting,
    in_sequence,
    string_match_all,
)
from kvbench.tasks.ruler.words import keys
from kvbench.tasks.task import Sample, Task, require_positive

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
class RulerV2(Task):
    """The numbers of one key in a haystack of such lines, in which each key has `num_values` numbers.

    - Protocol: `prepare_niah.py` of RULER v2 with the arguments of `prepare.py`: keys of an adjective and a noun,
      numbers of ten digits, samples from one generator with seed 42; officially 100 of them.
    - Length: `task.context_length` counts the prompt alone, as officially. The tokens of a chat template and of the
      answer come on top: leave room for them in models that read no more.
    - Split: after the haystack. The beginning of the answer is part of the question, as officially, also in a chat.
    - Source: generated. Keys come from wonderwords 2.2.0; `prepare.py` installs the newest release, whose words may be
      others.
    - Metric: `match_type=all` of `eval_ruler2`: for each number 1 if the answer contains it, else 1 less the word error
      rate, if that is more; then the mean. A number is one word, so the second is never more than the first.
    - Traps: `ruler/niah_multikey_2` and `ruler/niah_multivalue` are others: their numbers have seven digits, and the
      second hides them in essays. The branch of RULER v2 scores what follows the last `Answer:` of an answer; the main
      branch scores all of it, as here.
    - Differences: answers have 128 tokens here, and no limit officially. If the smallest haystack is too long, it is
      drawn again up to 100 times. The other ten tasks, of questions of MMLU and documents of HotpotQA, are not here.
    """

    name: str
    num_values: int
    context_length: int = 4096
    samples: int = 50
    seed: int = 42
    max_new_tokens: int = 128
    version = "ruler_v2-991a743.1"
    metric = "string_match_all"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "num_values", "context_length", "samples", "max_new_tokens")
        if self.num_values > self._step:
            raise UserError(
                f"task.num_values={self.num_values} of {self.name}: at most {self._step} needles fit the smallest "
                f"haystack at task.context_length={self.context_length}"
            )

    @property
    def _step(self) -> int:
        return STEP if self.context_length < 4096 else max(STEP, self.num_values)

    def score(self, prediction: str, sample: Sample) -> float:
        return string_match_all(prediction, sample.references)

    def generate(self, count_tokens: CountTokens, indices: Collection[int]) -> Iterator[Sample]:
        """As `Task.generate`. All samples come from one generator in sequence, so that earlier ones are drawn too."""
        try:
            for index, prompt in in_sequence(self._prompts(count_tokens), indices):
                question = prompt.question + prompt.answer_prefix
                yield Sample(index, self.name, prompt.context, question, "", prompt.answers, self.max_new_tokens)
        except DoesNotFit as error:
            raise UserError(
                f"task.context_length={self.context_length} cannot hold {self.name}: the smallest haystack has "
                f"{self._step} lines, with which prompts have up to {error.longest} tokens: use more"
            ) from None

    def _prompts(self, count_tokens: CountTokens) -> Iterator[Prompt]:
        """Yield an endless sequence of prompts, in the official order of draws. Raises DoesNotFit."""
        draw, step, room = partial(self._draw, random.Random(self.seed)), self._step, self.context_length
        size = bisected_by_rate(draw, count_tokens, step, room, room)
        while True:
            yield fitting(draw, count_tokens, size, step, room, self.num_values)

    def _draw(self, rng: random.Random, size: int) -> Prompt:
        """Draw a prompt with `size` lines besides the needles."""
        key, values = rng.choice(keys()), tuple(_number(rng) for _ in range(self.num_values))
        needles = [_line(key, value) for value in values]
        random.Random(self.seed).shuffle(needles)  # a fresh generator each time: always the same permutation
        if self.num_values == 1:
            lines = [_line(rng.choice(keys()), _number(rng)) for _ in range(size)]
        else:
            numbers = [_number(rng) for _ in range(size)]
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
        return Prompt(CONTEXT.format(**words, haystack=text), question.format(**named), prefix.format(**named), values)


def _number(rng: random.Random) -> str:
    return str(rng.randint(10 ** (DIGITS - 1), 10**DIGITS - 1))


def _line(key: str, value: str) -> str:
    return NEEDLE.format(kind="numbers", key=key, value=value)
