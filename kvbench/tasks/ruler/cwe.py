"""RULER's common words: which ten words of a numbered list appear most often.

    Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that ...
    1. nation 2. puppy 3. spade 4. personality 5. gallery 6. chassis 7. meditation ...
    Question: What are the 10 most common words in the above list? Answer: The top 10 words that appear most often in
    the list are:
    -> imitation, review, better, prick, exhaust, meme, porthole, migrant, chocolate, wide

Follows scripts/data/synthetic/common_words_extraction.py of https://github.com/NVIDIA/RULER. A solved example stands
before the list. From 4096 tokens up common words appear 30 times and others 3 times, below 6 times and once.

2024 has no space between the example's answer prefix and its answer, and no list longer than all words, so contexts of
128K are short. 2026 takes lists of more than 8169 words from another file, `ruler/english_words.json` under
`data.root`: 64K or 128K tokens may need it, depending on the tokenizer.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find
from kvbench.tasks.ruler.task import CountTokens, RulerPrompt, RulerTask, bisected, fitting, stepped
from kvbench.tasks.ruler.words import words

CONTEXT = (
    "Below is a numbered list of words. In these words, some appear more often than others."
    " Memorize the ones that appear most often.\n{haystack}"
)
QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
ANSWER_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10
LONG = 4096  # context length from which words repeat more often
ENGLISH_WORDS, ENGLISH_WORDS_SHA256 = "ruler/english_words.json", "affcd6d4"
"""The file, and the beginning of its SHA-256: another file would be another task under its name."""
PROBE = 4096  # words in the first probe of the 2026 search


@dataclass(frozen=True, kw_only=True)
class CommonWords(FromFiles, RulerTask):
    """Ten common words among others. `step` is in distinct words, at least ten."""

    max_new_tokens: int = 120
    _smallest_step = COMMON
    _unit = "distinct words beside a solved example"

    @property
    def files(self) -> tuple[str, ...]:
        return ()  # the words are fixed, whether installed or read

    @property
    def _official_step(self) -> int:
        return 10

    def _prompts(self, count_tokens: CountTokens, reserved: int) -> Iterator[RulerPrompt]:
        rng, pool = random.Random(self.seed), list(words())
        random.Random(self.seed).shuffle(pool)
        room = self.context_length - self.max_new_tokens - reserved

        draw = partial(self._draw, rng, pool)

        def tokens_with_answer(size: int, rng: random.Random) -> int:
            prompt = self._draw(rng, pool, size)
            return count_tokens(f"{prompt.text} {_numbered(prompt.answers)}")

        if self.era == "2024":
            separate = random.Random(self.seed)
            short = surely_short(lambda size: tokens_with_answer(size, separate), self._step, room, len(pool))

            def probe(size: int) -> int:
                """Return a prompt that is surely too short is drawn, which advances the generator, but not written."""
                if size >= short:
                    return tokens_with_answer(size, rng)
                rng.sample(pool, 40 if self.context_length >= LONG else 20)
                rng.sample(pool, size)
                return 0

            size = stepped(probe, self._step, room, most=len(pool))
        else:
            high = max(int(self.context_length // (count_tokens(draw(PROBE).text) / PROBE)) * 2, 2 * self._step)
            size = bisected(lambda size: count_tokens(draw(size).text), self._step, high, room)
        while True:
            yield fitting(draw, count_tokens, size, self._step, room)

    def _draw(self, rng: random.Random, pool: list[str], size: int) -> RulerPrompt:
        long = self.context_length >= LONG
        shown, right = self._list(rng, pool, 40, 10, 3) if long else self._list(rng, pool, 20, 3, 1)
        text, answers = self._list(rng, pool, size, 30, 3) if long else self._list(rng, pool, size, 6, 1)
        space = "" if self.era == "2024" else " "
        solved = f"{CONTEXT.format(haystack=shown)}{QUESTION}{ANSWER_PREFIX}{space}{_numbered(right)}\n"
        return RulerPrompt(CONTEXT.format(haystack=text), QUESTION, ANSWER_PREFIX, answers).after(solved)

    def _list(
        self, rng: random.Random, pool: list[str], size: int, often: int, seldom: int
    ) -> tuple[str, tuple[str, ...]]:
        """Return a numbered list over `size` words, and the common ones, which come `often` times."""
        if size > len(pool):
            pool = _english_words(self.root)
        drawn = rng.sample(pool, size)
        listed = drawn[:COMMON] * often + drawn[COMMON:] * seldom
        random.Random(self.seed).shuffle(listed)
        return _numbered(listed), tuple(drawn[:COMMON])


def surely_short(tokens: Callable[[int], int], step: int, room: int, most: int) -> int:
    """Return a size below which no probe reaches `room` tokens, found in a few draws of `tokens` from a separate
    generator.

    The mean length of n independent words varies by sd/sqrt(n), so a size smaller by the fraction 4/sqrt(n) is safe by
    four standard deviations if the sd of a word's tokens equals their mean; the tokenizers at hand have 0.4 of it.
    """
    high = step
    while high < most and tokens(high) < room:
        high = min(2 * high, most)
    reached = bisected(tokens, max(step, high // 2), high, room - 1)
    return int(reached * (1 - 4 / sqrt(reached)))


def _numbered(words: list[str] | tuple[str, ...]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))


def _english_words(root: str | None) -> list[str]:
    file = find(root, ENGLISH_WORDS)
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if not digest.startswith(ENGLISH_WORDS_SHA256):
        raise UserError(
            f"{file} has SHA-256 {digest[:8]}..., the benchmark's own has {ENGLISH_WORDS_SHA256}...: fetch it again "
            "(a file of 130 bytes is a pointer of git lfs)"
        )
    return list(json.loads(content).values())
