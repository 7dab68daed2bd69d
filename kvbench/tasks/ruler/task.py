"""What the members of RULER have in common: eras, lengths, and samples that come from one generator in sequence.

The benchmark's generators changed several times; two states of https://github.com/NVIDIA/RULER are built here:

* `era=2026`: c3f5e3b (2026-07-22), sizes found by bisection;
* `era=2024`: e40fae1 (2024-10), sizes found by growing step by step. Data sets published in 2024 are of this kind
  (`simonjegou/ruler`, the files of KVCache-Factory). Its rows hold the answer prefix inside `input`; here it is a part
  of its own in both eras, because the official prepare.py puts it after a chat template.

`context_length` includes the tokens to generate, and counts none of a chat template.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.ruler import string_match_all
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.ruler.size import DoesNotFit
from kvbench.tasks.sample import Sample

VERSIONS = {"2024": "ruler-e40fae1-2024.1", "2026": "ruler-c3f5e3b-2026.1"}
LONGEST = 2**22
"""Tokens beyond which no context length is looked for."""
CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Prompt:
    """One drawn prompt in its parts, with the right answers."""

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]

    @property
    def text(self) -> str:
        """Everything before the answer."""
        return self.context + self.question + self.answer_prefix

    def after(self, text: str) -> "Prompt":
        """The same prompt with a text before it."""
        return replace(self, context=text + self.context)


@dataclass(frozen=True, kw_only=True)
class RulerTask(Prompting, ABC):
    """One RULER task. Lengths in tokens.

    `step` is what a haystack grows and shrinks by, and the smallest one there is, in the task's own units; null is the
    benchmark's.

    Raises:
        ValueError: a field is outside its legal set.
    """

    name: str
    context_length: int = 512
    samples: int = 50
    seed: int = 42
    era: str = "2026"
    max_new_tokens: int
    step: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "era", str(self.era))  # a command line reads era=2026 as a number
        self._choose("era", VERSIONS)
        self._positive("context_length", "samples", "max_new_tokens")
        if self.step is not None and self.step < self._smallest_step:
            raise UserError(f"task.step={self.step} of {self.name}: at least {self._smallest_step}, or null")

    @property
    def version(self) -> str:
        """Names the protocol; a change of any draw or byte gets another."""
        ours = "" if self._step == self._official_step else f"-step{self._step}"
        return VERSIONS[self.era] + ours

    @property
    def metric(self) -> str:
        """The metric's name in rows and reports."""
        return "string_match_all"

    def score(self, prediction: str, sample: Sample) -> float:
        """Share of the references that the answer contains, 0..1."""
        return string_match_all(prediction, sample.references)

    @property
    @abstractmethod
    def _official_step(self) -> int:
        """The benchmark's step."""

    @property
    def _step(self) -> int:
        return self.step or self._official_step

    @property
    def _smallest_step(self) -> int:
        return 1

    @property
    @abstractmethod
    def _unit(self) -> str:
        """What the haystack is counted in, for messages."""

    @abstractmethod
    def _prompts(self, count_tokens: CountTokens) -> Iterator[Prompt]:
        """Prompts without end, in the official order of draws. Raises DoesNotFit."""

    def generate(self, count_tokens: CountTokens, indices: Collection[int]) -> Iterator[Sample]:
        """Yield the samples of `indices` in ascending order; `count_tokens` counts without special tokens.

        All samples come from one generator in sequence; those before are drawn too: sample i is the same in any shard.

        Raises:
            ValueError: an index is negative, or no prompt fits `context_length`; the smallest that holds all is named.
            FileNotFoundError: data that the task reads is not there.
        """
        if any(index < 0 for index in indices):
            raise UserError(f"sample indices start at 0, got {min(indices)}")
        last = max(indices, default=-1)
        try:
            for index, prompt in enumerate(islice(self._prompts(count_tokens), last + 1)):
                if index in indices:
                    yield self._sample(index, prompt)
        except DoesNotFit as error:
            asked = max(self.samples, last + 1)
            smallest = self._smallest(count_tokens, error, asked)
            fix = f"smallest context_length for {asked} samples: {smallest}"
            raise UserError(
                f"task.context_length={self.context_length} cannot hold {self.name}: "
                f"the smallest haystack has {self._step} {self._unit}, the answer has {self.max_new_tokens} tokens; "
                f"{'no context_length does with this tokenizer' if smallest is None else fix}"
            ) from None

    def _sample(self, index: int, prompt: Prompt) -> Sample:
        return Sample(
            index,
            self.name,
            prompt.context,
            prompt.question,
            prompt.answer_prefix,
            prompt.answers,
            self.max_new_tokens,
        )

    def _smallest(self, count_tokens: CountTokens, seen: DoesNotFit, samples: int) -> int | None:
        """The context length that holds `samples` samples while one token less does not; None where a part never fits.

        A solved example has a length of its own, which a tokenizer of many tokens a word cannot keep.
        """

        def holds(length: int) -> bool:
            try:
                for _ in islice(replace(self, context_length=length)._prompts(count_tokens), samples):
                    pass
            except DoesNotFit:
                return False
            return True

        low, high = self.context_length, max(seen.longest + self.max_new_tokens, self.context_length + 1)
        while not holds(high):
            low, high = high, 2 * high
            if high > LONGEST:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    def _choose(self, field: str, legal: Collection[str]) -> None:
        if getattr(self, field) not in legal:
            raise UserError(f"task.{field}={getattr(self, field)!r} of {self.name}: choose one of {', '.join(legal)}")

    def _positive(self, *fields: str) -> None:
        for field in fields:
            if getattr(self, field) <= 0:
                raise UserError(f"task.{field}={getattr(self, field)} of {self.name}: give a whole number above 0")


def generator(seed: int) -> random.Random:
    """The state of the generator when the official scripts draw for the first time.

    The rows begin one draw after the seed: seen in all of them, reason unknown.
    """
    rng = random.Random(seed)
    rng.getrandbits(32)
    return rng
