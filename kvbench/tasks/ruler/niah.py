"""RULER's needle in a haystack, eight tasks.

    A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about ...
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    One of the special magic numbers for wandering-age is: 8090293.
    The grass is green. ...
    What is the special magic number for wandering-age mentioned in the provided text? The special magic number for
    wandering-age mentioned in the provided text is
    -> 8090293

Follows scripts/data/synthetic/niah.py and constants.py of https://github.com/NVIDIA/RULER in both eras, with the same
draws, so that `context + question` equals the column `input` (2024: with `answer_prefix`).

Essays below 2048 tokens: the official haystack grows by 500 words, which cannot fit there and never ends at 512 tokens.
There it grows by 25 words, a step of kvbench that the version names; `step: 500` is the official one.

Officially all prompts of a task hide their needles in one text, the first words of the essays. `texts: varied` and
`haystack: book` are ours: each prompt has another part of the essays, or of the books of PG19, which have many more.
Then intervals tell of other texts too.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import ClassVar, Literal

from kvbench.support.errors import UserError
from kvbench.tasks.files import FromFiles, listing
from kvbench.tasks.ruler.haystack import BOOKS, DEPTHS, ESSAYS, NOISE, Prose, Splitter, inserted, joined, resolved
from kvbench.tasks.ruler.task import CountTokens, RulerPrompt, RulerTask, bisected_by_rate, fitting, stepped
from kvbench.tasks.ruler.words import keys
from kvbench.tasks.task import require_positive

Drawn = Literal["numbers", "words", "uuids"]
"""The kinds of keys and values."""
DRAWS: dict[Drawn, Callable[[random.Random], str]] = {
    "numbers": lambda rng: str(rng.randint(10**6, 10**7 - 1)),
    "words": lambda rng: rng.choice(keys()),
    "uuids": lambda rng: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
}
"""How one is drawn."""
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
CONTEXT = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it."
    " I will quiz you about the {kind} afterwards.\n{haystack}"
)
QUESTION = "\nWhat are all the special magic {kind} for {query} mentioned in the provided text?"
ANSWER_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
SINGULAR = (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer"))
SHORT_ESSAYS, SHORT_STEP = 2048, 25
"""The context length below which essays grow by so few words."""
PROSE = {"essay": ESSAYS, "book": BOOKS}
"""The haystacks of whole sentences: the pattern of their files under `data.root`."""


@dataclass(frozen=True, kw_only=True)
class Niah(FromFiles, RulerTask):
    """One NIAH task: `num_keys` keys (at least `num_queries`) with `num_values` values each; `num_queries` are queried.

    `splitter` finds the sentences of essays and books, `root` is their folder; other haystacks use neither. `step` is
    in words of essays and books, otherwise in lines. texts: `fixed`, the first words, or `varied`: the text is cut into
    parts of `context_length` words, and prompts take them in an order that the seed draws. The first part comes again
    after the last. Prompts with one part are one cluster of the statistics.

    Raises UserError where texts are to vary and a haystack has none, or fewer than two parts.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("root", "splitter", "texts")
    haystack: Literal["noise", "needle", "essay", "book"]
    keys: Drawn
    values: Drawn
    num_keys: int = 1
    num_values: int = 1
    num_queries: int = 1
    max_new_tokens: int = 128
    splitter: Splitter = "auto"
    texts: Literal["fixed", "varied"] = "fixed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.texts == "varied" and not self._reads_prose:
            raise UserError(
                f"task.texts=varied of {self.name}: its haystack is {self.haystack}, which has no other text; "
                f"allowed: fixed, or task.haystack={' or '.join(PROSE)}"
            )
        require_positive(self, "num_keys", "num_values", "num_queries")
        most = len(DEPTHS) if self._reads_prose else self._step
        if self._needles > most:
            raise UserError(
                f"task.num_keys={self.num_keys} x task.num_values={self.num_values} of {self.name}: "
                f"at most {most} needles fit the smallest haystack at task.context_length={self.context_length}"
            )

    @property
    def version(self) -> str:
        """With the sentence splitter of essays. Raises UserError or MissingFile if it is not installed."""
        return super().version + (f"-punkt_{resolved(self.splitter)}" if self._reads_prose else "")

    @property
    def files(self) -> tuple[str, ...]:
        return listing(self.root, PROSE[self.haystack]) if self._reads_prose else ()

    @property
    def _reads_prose(self) -> bool:
        return self.haystack in PROSE

    @property
    def _needles(self) -> int:
        return max(self.num_keys, self.num_queries) * self.num_values

    @property
    def _official_step(self) -> int:
        if self._reads_prose:
            return 500
        return 5 if self.context_length < 4096 else 25

    @property
    def _step(self) -> int:
        short = self._reads_prose and self.context_length < SHORT_ESSAYS
        return self.step or (SHORT_STEP if short else self._official_step)

    @property
    def _unit(self) -> str:
        return "words" if self._reads_prose else "lines"

    def _prompts(self, count_tokens: CountTokens, reserved: int) -> Iterator[RulerPrompt]:
        rng, prose, step = random.Random(self.seed), None, self._step
        room = self.context_length - self.max_new_tokens - reserved
        if self._reads_prose:
            prose = Prose(joined(self.root, PROSE[self.haystack]), resolved(self.splitter), wraps=self.era != "2024")

        draw = partial(self._draw, rng, prose)

        def tokens_with_answers(size: int) -> int:
            prompt = draw(size)
            return count_tokens(prompt.text + " ".join(prompt.answers))

        if self.era == "2024":
            most = None if prose is None else len(prose)
            size = stepped(tokens_with_answers, step, room, most, last_probe=most and most + step)
        else:
            size = bisected_by_rate(draw, count_tokens, step, self.context_length, room)
        smallest = 1 if prose else self._needles
        if prose is None or self.texts == "fixed":
            while True:
                yield fitting(draw, count_tokens, size, step, room, smallest)
        for start in cycle(self._starts(prose)):
            prompt = fitting(partial(draw, start=start), count_tokens, size, step, room, smallest)
            yield prompt._replace(text_in_common=prose.words(self.context_length, start))

    def _starts(self, prose: Prose) -> list[int]:
        """Return the first words of all parts of the text, in the order in which prompts take them."""
        count = len(prose) // self.context_length
        if count < 2:
            raise UserError(
                f"task.texts=varied of {self.name}: its text has {len(prose)} words, fewer than two parts of "
                f"task.context_length={self.context_length} words; books have more: task.haystack=book"
            )
        order = random.Random(self.seed).sample(range(count), count)
        return [number * self.context_length for number in order]

    def _draw(self, rng: random.Random, prose: Prose | None, size: int, start: int = 0) -> RulerPrompt:
        """Draw a prompt over `size` words of `prose` from `start` on, or lines, in the official order of draws."""
        names, values, needles = [], [], []
        for _ in range(max(self.num_keys, self.num_queries)):
            names.append(DRAWS[self.keys](rng))
            values.append([DRAWS[self.values](rng) for _ in range(self.num_values)])
            needles += [NEEDLE.format(kind=self.values, key=names[-1], value=value) for value in values[-1]]
        random.Random(self.seed).shuffle(needles)  # a fresh generator each time: always the same permutation
        if prose is None:
            lines = [NOISE] * size
            if self.haystack == "needle":
                drawn = ((DRAWS[self.keys](rng), DRAWS[self.values](rng)) for _ in lines)
                lines = [NEEDLE.format(kind=self.values, key=key, value=value) for key, value in drawn]
            text = "\n".join(inserted(needles, lines, rng))
        else:
            text = prose.around(needles, size, rng, start)
        queried = rng.sample(range(len(names)), self.num_queries)
        parts, kind = [CONTEXT, QUESTION, ANSWER_PREFIX], self.values
        if self.num_queries * self.num_values == 1:
            kind = kind[:-1]
            for plural, singular in SINGULAR:
                parts = [part.replace(plural, singular) for part in parts]
        *others, last = (names[index] for index in queried)
        query = f"{', '.join(others)}, and {last}" if others else last
        context, question, prefix = (part.format(kind=kind, query=query, haystack=text) for part in parts)
        return RulerPrompt(context, question, prefix, tuple(value for index in queried for value in values[index]))
