"""Time and memory: one prompt of so many tokens, read, cut and answered by so many sequences at a time.

    harbor 48213 lantern 90125 ...      words and numbers, drawn once, cut to exactly `context_length` tokens

Nothing is judged. A sample is a repetition: all of them read the same prompt, and the numbers of a repetition are what
the clock said. The settings are those of the papers' own figures: OBCache D.1 at
https://arxiv.org/abs/2510.07651 (context lengths, batches 1 and 4, 512 tokens), LAVa section 5.3 (128 tokens).
"""

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.sample import Sample, Tokens

WORDS = ("harbor", "lantern", "meadow", "copper", "violin", "glacier", "saddle", "orchard", "pepper", "anchor")


@dataclass(frozen=True, kw_only=True)
class Efficiency(Prompting):
    """How long a prompt takes and what it holds.

    context_length: tokens of each prompt, exactly. batch: sequences that decode together, each with a cache of its own
    from the same prompt. new_tokens: of each answer, whose end is no token but this number. repeats: measured ones,
    each a row. warmup: repetitions before them that are not recorded.

    Raises ValueError for values outside the legal set and for settings of prompts and answers, which there are none of.
    """

    name: str = "efficiency"
    context_length: int = 512
    batch: int = 1
    new_tokens: int = 64
    repeats: int = 5
    warmup: int = 1
    seed: int = 42
    chat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("context_length", 2), ("batch", 1), ("new_tokens", 2), ("repeats", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise UserError(f"task.{name}={getattr(self, name)}: at least {least}")
        if self.chat or self.truncation != "refuse" or self.max_prompt_tokens is not None:
            raise UserError(
                "a prompt that is timed is read as it is: task.chat=false, task.truncation=refuse and "
                "task.max_prompt_tokens=null; task.context_length says how long it is"
            )
        if self.stop or self.min_new_tokens:
            raise UserError("an answer that is timed ends at task.new_tokens: task.stop=[], task.min_new_tokens=0")

    @property
    def version(self) -> str:
        """Names the prompt and what is timed."""
        return "efficiency.1"

    @property
    def metric(self) -> str:
        """Median seconds from one new token of every sequence to the next."""
        return "seconds_per_token"

    @property
    def samples(self) -> int:
        """Repetitions are what other tasks call samples."""
        return self.repeats

    @property
    def max_new_tokens(self) -> int:
        """Of each answer."""
        return self.new_tokens

    def context_of(self, sample: int) -> int:
        """All repetitions are about one text."""
        return 0

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample]:
        """Yield the same text for each repetition: at least as many tokens as are asked for, as every word has one."""
        draw = random.Random(f"efficiency {self.seed}")
        pairs = (self.context_length + 1) // 2
        text = " ".join(f"{draw.choice(WORDS)} {draw.randrange(10**5)}" for _ in range(pairs))
        for index in sorted(indices):
            yield Sample(index, self.name, text, "", "", (), self.new_tokens)

    def score(self, prediction: str, sample: Sample) -> float:
        """There is no answer to score."""
        raise AssertionError(f"{sample.task} has no answers")
