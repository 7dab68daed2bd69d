"""RULER's frequent words: which three words of a coded text appear most often.

    Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared
    coded words. frrkvo ... ... ntuxmh rktacg ... ... frrkvo ...
    Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently appeared
    words in the above coded text? Answer: According to the coded text above, the three most frequently appeared words
    are:
    -> frrkvo, ntuxmh, qkcirn

Follows scripts/data/synthetic/freq_words_extraction.py of https://github.com/NVIDIA/RULER with alpha = 2: the word of
rank k comes int(n k^-2 / zeta(2)) times, and dots replace the first. Texts grow in steps of 1/32 of the length until
they reach it. 2024 leaves no room for the tokens to generate: its prompts may be that much too long.
"""

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import zeta

from kvbench.support.errors import UserError
from kvbench.tasks.ruler.task import CountTokens, DoesNotFit, RulerPrompt, RulerTask

CONTEXT = (
    "Read the following coded text and track the frequency of each coded word."
    " Find the three most frequently appeared coded words. {haystack}"
)
QUESTION = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'."
    " What are the three most frequently appeared words in the above coded text?"
)
ANSWER_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
ALPHA = 2.0
LETTERS = 6
TOKENS_PER_WORD = 50  # tokens of the text per word of the vocabulary
DOTS = "..."
ANSWERS = 3
FEWEST = TOKENS_PER_WORD * (ANSWERS + 1)
"""Tokens of the shortest text whose vocabulary holds the dots and the answers."""


@dataclass(frozen=True, kw_only=True)
class FrequentWords(RulerTask):
    """Three frequent words. `step` is in words of the text."""

    max_new_tokens: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._room < FEWEST:
            least = self.context_length - self._room + FEWEST
            raise UserError(f"task.context_length={self.context_length} of {self.name}: allowed: at least {least}")

    @property
    def _room(self) -> int:
        return self.context_length - (0 if self.era == "2024" else self.max_new_tokens)

    @property
    def _official_step(self) -> int:
        return self._room // 32

    def _prompts(self, count_tokens: CountTokens, reserved: int) -> Iterator[RulerPrompt]:
        rng, size = random.Random(self.seed), self._room // LETTERS
        vocabulary = self._vocabulary(rng)
        room = self._room - reserved
        while count_tokens(self._prompt(vocabulary, size).text) < room:
            size += self._step
        size -= self._step
        while True:
            vocabulary, fitting = self._vocabulary(rng), size
            prompt = self._prompt(vocabulary, fitting)
            while (tokens := count_tokens(prompt.text)) > room:
                fitting -= self._step
                if fitting <= 0:
                    raise DoesNotFit(tokens)
                prompt = self._prompt(vocabulary, fitting)
            yield prompt

    def _vocabulary(self, rng: random.Random) -> list[str]:
        count, words = self._room // TOKENS_PER_WORD, set[str]()
        while len(words) < count:
            words.add("".join(rng.choices(string.ascii_lowercase, k=LETTERS)))
        vocabulary = sorted(words)
        random.Random(self.seed).shuffle(vocabulary)
        return [DOTS, *vocabulary[1:]]

    def _prompt(self, vocabulary: list[str], size: int) -> RulerPrompt:
        counts = (size * np.arange(1, len(vocabulary) + 1) ** -ALPHA / zeta(ALPHA)).astype(int)
        text = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
        random.Random(self.seed).shuffle(text)
        answers = tuple(vocabulary[1 : ANSWERS + 1])
        return RulerPrompt(CONTEXT.format(haystack=" ".join(text)), QUESTION, ANSWER_PREFIX, answers)
