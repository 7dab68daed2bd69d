"""RULER's needle in a haystack.

    A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about ...
    The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.
    One of the special magic numbers for wandering-age is: 8090293.
    The grass is green. ...
    What is the special magic number for wandering-age mentioned in the provided text? The special magic number for
    wandering-age mentioned in the provided text is
    -> 8090293

Follows scripts/data/synthetic/niah.py and constants.py of https://github.com/NVIDIA/RULER at c3f5e3b (2026): the same
draws from a generator of our own, so `context + question` equals `input`, and `answer_prefix` the column of that name.
`context_length` includes the tokens to generate. Haystacks of essays are not built here.
"""

import random
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from kvbench.tasks.metrics.ruler import string_match_all
from kvbench.tasks.prompting import Prompting
from kvbench.tasks.ruler.size import DoesNotFit, prompts
from kvbench.tasks.ruler.words import keys
from kvbench.tasks.sample import Sample

VERSIONS = {"2026": "ruler-c3f5e3b-2026.1"}
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
CONTEXT = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it."
    " I will quiz you about the {kind} afterwards.\n{haystack}"
)
QUESTION = "\nWhat are all the special magic {kind} for {query} mentioned in the provided text?"
ANSWER_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
SINGULAR = (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer"))


@dataclass(frozen=True)
class _Prompt:
    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.context + self.question + self.answer_prefix


@dataclass(frozen=True)
class Niah(Prompting):
    """One NIAH task. Lengths in tokens; `num_keys` needles with `num_values` values each, `num_queries` keys asked for.

    Raises:
        ValueError: a field is outside its legal set.
    """

    name: str
    haystack: str
    keys: str
    values: str
    num_keys: int = 1
    num_values: int = 1
    num_queries: int = 1
    context_length: int = 512
    samples: int = 50
    seed: int = 42
    era: str = "2026"
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "era", str(self.era))  # a command line reads era=2026 as a number
        for field, legal in {
            "era": tuple(VERSIONS),
            "haystack": ("noise", "needle"),
            "keys": tuple(DRAWS),
            "values": tuple(DRAWS),
        }.items():
            if getattr(self, field) not in legal:
                raise ValueError(
                    f"task.{field}={getattr(self, field)!r} of {self.name}: choose one of {', '.join(legal)}"
                )
        for field in ("num_keys", "num_values", "num_queries", "context_length", "samples", "max_new_tokens"):
            if getattr(self, field) <= 0:
                raise ValueError(f"task.{field}={getattr(self, field)} of {self.name}: give a whole number above 0")
        if self._needles > self._step:
            raise ValueError(
                f"task.num_keys={self.num_keys} x task.num_values={self.num_values} of {self.name}: "
                f"at most {self._step} needles fit the smallest haystack at task.context_length={self.context_length}"
            )

    @property
    def version(self) -> str:
        """Names the protocol; a change of any draw or byte gets another."""
        return VERSIONS[self.era]

    @property
    def metric(self) -> str:
        """The metric's name in rows and reports."""
        return "string_match_all"

    @property
    def _needles(self) -> int:
        return max(self.num_keys, self.num_queries) * self.num_values

    @property
    def _step(self) -> int:
        """Sentences by which a haystack grows and shrinks, and the fewest it has."""
        return 5 if self.context_length < 4096 else 25

    def score(self, prediction: str, sample: Sample) -> float:
        """Share of the values that the answer contains, 0..1."""
        return string_match_all(prediction, sample.references)

    def generate(self, count_tokens: Callable[[str], int], indices: Collection[int]) -> Iterator[Sample]:
        """Yield the samples of `indices` in ascending order; `count_tokens` counts without special tokens.

        All samples come from one generator in sequence; those before are drawn too: sample i is the same in any shard.

        Raises:
            ValueError: an index is negative, or no prompt fits `context_length`; the smallest that holds all is named.
        """
        if any(index < 0 for index in indices):
            raise ValueError(f"sample indices start at 0, got {min(indices)}")
        last = max(indices, default=-1)
        try:
            for index, prompt in enumerate(islice(self._prompts(count_tokens), last + 1)):
                if index in indices:
                    yield Sample(
                        index,
                        self.name,
                        prompt.context,
                        prompt.question,
                        prompt.answer_prefix,
                        prompt.answers,
                        self.max_new_tokens,
                    )
        except DoesNotFit as error:
            asked = max(self.samples, last + 1)
            smallest = self._smallest(count_tokens, error, asked)
            raise ValueError(
                f"task.context_length={self.context_length} cannot hold {self.name}: "
                f"the smallest haystack has {self._step} sentences, the answer has {self.max_new_tokens} tokens; "
                f"smallest context_length for {asked} samples: {smallest}"
            ) from None

    def _prompts(self, count_tokens: Callable[[str], int]) -> Iterator[_Prompt]:
        rng = random.Random(self.seed)
        rng.getrandbits(32)  # the official rows begin one draw after the seed: seen in all of them, reason unknown

        def length(prompt: _Prompt) -> int:
            return count_tokens(prompt.text)

        return prompts(lambda size: self._draw(rng, size), length, self._step, self.context_length, self.max_new_tokens)

    def _draw(self, rng: random.Random, size: int) -> _Prompt:
        """One prompt over a haystack of `size` sentences; the order of the draws is the official one."""
        names, values, needles = [], [], []
        for _ in range(max(self.num_keys, self.num_queries)):
            names.append(DRAWS[self.keys](rng))
            values.append([DRAWS[self.values](rng) for _ in range(self.num_values)])
            needles += [NEEDLE.format(kind=self.values, key=names[-1], value=value) for value in values[-1]]
        random.Random(self.seed).shuffle(needles)  # a fresh generator each time: always the same permutation
        sentences = [NOISE] * size if self.haystack == "noise" else [self._distractor(rng) for _ in range(size)]
        places = sorted(rng.sample(range(size), len(needles)), reverse=True)
        for place, needle in zip(places, needles, strict=True):
            sentences.insert(place, needle)
        asked = rng.sample(range(len(names)), self.num_queries)
        parts, kind = (CONTEXT, QUESTION, ANSWER_PREFIX), self.values
        if self.num_queries * self.num_values == 1:
            parts, kind = tuple(_singular(part) for part in parts), kind[:-1]
        query, haystack = _listed([names[index] for index in asked]), "\n".join(sentences)
        context, question, prefix = (part.format(kind=kind, query=query, haystack=haystack) for part in parts)
        return _Prompt(context, question, prefix, tuple(value for index in asked for value in values[index]))

    def _distractor(self, rng: random.Random) -> str:
        key = DRAWS[self.keys](rng)
        return NEEDLE.format(kind=self.values, key=key, value=DRAWS[self.values](rng))

    def _smallest(self, count_tokens: Callable[[str], int], seen: DoesNotFit, samples: int) -> int:
        """The context length that holds `samples` samples while one token less does not."""

        def holds(length: int) -> bool:
            try:
                for _ in islice(replace(self, context_length=length)._prompts(count_tokens), samples):
                    pass
            except DoesNotFit:
                return False
            return True

        low, high = self.context_length, seen.longest + self.max_new_tokens
        while not holds(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high


def _singular(template: str) -> str:
    for plural, singular in SINGULAR:
        template = template.replace(plural, singular)
    return template


def _number(rng: random.Random) -> str:
    return str(rng.randint(10**6, 10**7 - 1))


def _word(rng: random.Random) -> str:
    return rng.choice(keys())


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + ", and " + names[-1] if len(names) > 1 else names[0]


DRAWS: dict[str, Callable[[random.Random], str]] = {"numbers": _number, "words": _word, "uuids": _uuid}
"""What keys and values can be, and how one is drawn."""
