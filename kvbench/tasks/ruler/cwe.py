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
from collections.abc import Iterator
from dataclasses import dataclass

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, find
from kvbench.tasks.ruler.size import Skim, bisected, fitting, stepped, surely_short
from kvbench.tasks.ruler.task import CountTokens, Prompt, RulerTask, generator
from kvbench.tasks.ruler.words import words

CONTEXT = (
    "Below is a numbered list of words. In these words, some appear more often than others."
    " Memorize the ones that appear most often.\n{haystack}"
)
QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
ANSWER_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10
LONG = 4096
"""Context length from which words repeat more often."""
ENGLISH_WORDS = "ruler/english_words.json"
ENGLISH_WORDS_SHA256 = "affcd6d4"
"""Beginning of the SHA-256 of the benchmark's own file: another file would be another task under its name."""
PROBE = 4096
"""Words in the first probe of the 2026 search."""


@dataclass(frozen=True, kw_only=True)
class CommonWords(FromFiles, RulerTask):
    """Ten common words among others. `step` is in distinct words, at least ten."""

    max_new_tokens: int = 120
    _smallest_step = COMMON
    _unit = "distinct words beside a solved example"

    @property
    def files(self) -> tuple[str, ...]:
        """None: the words are fixed, whether installed or read."""
        return ()

    @property
    def _official_step(self) -> int:
        return 10

    def _prompts(self, count_tokens: CountTokens) -> Iterator[Prompt]:
        rng, pool = generator(self.seed), list(words())
        random.Random(self.seed).shuffle(pool)
        room = self.context_length - self.max_new_tokens

        def draw(size: int) -> Prompt:
            return self._draw(rng, pool, size)

        def length(prompt: Prompt) -> int:
            return count_tokens(prompt.text)

        def length_with_answer(size: int, rng: random.Random = rng) -> int:
            prompt = self._draw(rng, pool, size)
            return count_tokens(f"{prompt.text} {_numbered(prompt.answers)}")

        if self.era == "2024":
            separate = generator(self.seed)
            short = surely_short(lambda size: length_with_answer(size, separate), self._step, room, len(pool))
            skim = Skim(short, lambda size: self._skip(rng, pool, size))
            size = stepped(length_with_answer, self._step, room, most=len(pool), skim=skim)
        else:
            per_word = length(draw(PROBE)) / PROBE
            high = max(int(self.context_length // per_word) * 2, 2 * self._step)
            size = bisected(lambda size: length(draw(size)), self._step, high, room)
        while True:
            yield fitting(draw, length, size, self._step, room)

    def _draw(self, rng: random.Random, pool: list[str], size: int) -> Prompt:
        long = self.context_length >= LONG
        shown, right = self._list(rng, pool, 40, 10, 3) if long else self._list(rng, pool, 20, 3, 1)
        text, answers = self._list(rng, pool, size, 30, 3) if long else self._list(rng, pool, size, 6, 1)
        space = "" if self.era == "2024" else " "
        solved = f"{CONTEXT.format(haystack=shown)}{QUESTION}{ANSWER_PREFIX}{space}{_numbered(right)}\n"
        return Prompt(CONTEXT.format(haystack=text), QUESTION, ANSWER_PREFIX, answers).after(solved)

    def _skip(self, rng: random.Random, pool: list[str], size: int) -> None:
        """Draw what a prompt of this size draws, without writing it."""
        rng.sample(pool, 40 if self.context_length >= LONG else 20)
        rng.sample(pool, size)

    def _list(
        self, rng: random.Random, pool: list[str], size: int, often: int, seldom: int
    ) -> tuple[str, tuple[str, ...]]:
        """A numbered list over `size` words, and the common ones, which come `often` times."""
        if size > len(pool):
            pool = _english_words(self.root)
        drawn = rng.sample(pool, size)
        listed = drawn[:COMMON] * often + drawn[COMMON:] * seldom
        random.Random(self.seed).shuffle(listed)
        return _numbered(listed), tuple(drawn[:COMMON])


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
