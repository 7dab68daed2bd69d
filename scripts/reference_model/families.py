"""Prompts of RULER's families as training rows, and stretches of books.

Only protocol sentences are RULER's (scripts/data/synthetic/{niah,variable_tracking,common_words_extraction,
freq_words_extraction}.py and constants.py at c3f5e3b); every draw is ours. A row holds one context and as many
questions as its length pays for, each answered and ended by the end token, so that a token read teaches more. Where
several values are asked for, any of those not yet named is right.
"""

import random
import re
import string
from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import pairwise

from .data import Source, number, random_uuid
from .rows import ANSWER, GUESSED, REPEATED, TEXT, Row

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
TOLD = "Make sure to memorize it. I will quiz you about the {kind} afterwards.\n"
HEADERS = (
    "A special magic {kind} is hidden within the following text. " + TOLD,
    "Some special magic {kind} are hidden within the following text. " + TOLD,
)
QUESTIONS = (
    "\nWhat is the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text is",
    "\nWhat are all the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text are",
)
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
TRACK = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
TRACKED = (
    "\nQuestion: Find all variables that are assigned the value {value} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above,"
    " 5 variables are assigned the value {value}, they are: "
)
COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others."
    " Memorize the ones that appear most often.\n"
)
MOST_COMMON = (
    "\nQuestion: What are the 10 most common words in the above list?"
    " Answer: The top 10 words that appear most often in the list are:"
)
FREQUENT = (
    "Read the following coded text and track the frequency of each coded word."
    " Find the three most frequently appeared coded words. "
)
MOST_FREQUENT = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently"
    " appeared words in the above coded text? Answer: According to the coded text above, the three most frequently"
    " appeared words are:"
)
SENTENCE = re.compile(r"(?<=[.!?]) ")
SHORTEST = {"common": 160, "tracking": 300, "frequent": 320, "uuid": 200, "values": 200, "queries": 200, "single": 128}
"""Tokens below which a family has no room for one question."""
RANDOM = ("copying", "spaced", "lists", "sets", "counts")
SETS = (2, 3, 4, 4, 4, 4, 4, 4, 4, 4)
"""Numbers of values or keys in one question: RULER asks for four."""


@dataclass(frozen=True)
class Needles:
    """A kind of needle prompt, named in a plan as `single/essay` or `single/needle/uuid`.

    family: `single` (one value of one key), `values` (several of one), `queries` (one each of several). hay: `noise`,
    `essay` (a book) or `needle` (other needles). uuid: values are UUIDs, among needles keys too.
    """

    family: str
    hay: str
    uuid: bool = False

    @classmethod
    def of(cls, name: str) -> "Needles":
        family, hay, *rest = name.split("/")
        return cls(family, hay, bool(rest))

    @property
    def plural(self) -> bool:
        return self.family != "single"

    @property
    def kind(self) -> str:
        return "uuids" if self.uuid else "numbers"

    @property
    def named(self) -> str:
        """The kind as header and question write it."""
        return self.kind if self.plural else self.kind[:-1]

    def value(self, rng: random.Random) -> str:
        return random_uuid(rng) if self.uuid else number(rng)


class Families:
    """Draws rows of the kinds that a plan names."""

    def __init__(self, source: Source):
        self.source = source
        self._noise = len(source.encode(NOISE)) + 1

    def row(self, rng: random.Random, name: str, tokens: int) -> Row:
        """One row of a kind, at most `tokens` long."""
        for _ in range(20):
            if name in RANDOM:
                row = getattr(self.source, name)(rng, tokens)
            elif "/" in name:
                row = self.needles(rng, Needles.of(name), tokens)
            else:
                row = getattr(self, name)(rng, tokens)
            if len(row.ids) <= tokens:
                return row
        return row.cut(tokens)

    def text(self, rng: random.Random, tokens: int) -> Row:
        """A stretch of a book with its line ends, every token predicted."""
        row, book = Row("text"), rng.choice(self.source.books)
        start = rng.randrange(max(1, len(book) - tokens * 5))
        row.write(self.source.encode(book[start : start + tokens * 5])[:tokens], TEXT)
        return row

    def needles(self, rng: random.Random, prompt: Needles, tokens: int) -> Row:
        """A haystack with needles, then questions."""
        encode, row = self.source.encode, Row(" ".join((prompt.family, prompt.hay) + ("uuid",) * prompt.uuid))
        key_of: Callable[[random.Random], str] = (
            random_uuid if prompt.uuid and prompt.hay == "needle" else self.source.key
        )

        def needle(key: str, value: str) -> str:
            return NEEDLE.format(kind=prompt.kind, key=key, value=value)

        header, question = HEADERS[prompt.plural].format(kind=prompt.named), QUESTIONS[prompt.plural]
        needle_size = len(encode(needle(key_of(rng), prompt.value(rng)))) + 2
        value_size, key_size = len(encode(f" {prompt.value(rng)}")) + 1, len(encode(key_of(rng)))
        question_size = len(encode(question.format(kind=prompt.named, query="")))
        room = tokens - len(encode(header)) - 4
        most = room * (rng.uniform(0.35, 0.9) if row.kind.startswith("single needle") else rng.uniform(0.45, 1.0))
        values_of: dict[str, list[str]] = {}
        questions: list[list[str]] = []
        cost, count = 0, rng.randint(1, 6 if prompt.plural else 12)
        while len(questions) < count:
            queried = self._question(rng, prompt, key_of, values_of)
            price = question_size + (2 * key_size + 3) * len(queried)
            for key, values in queried.items():
                repeated = (key_size + 2) * prompt.plural
                price += len(values) * (needle_size * (key not in values_of) + value_size + repeated)
            if questions and cost + price > most:
                break
            cost += price
            values_of |= queried
            questions.append(list(queried))
        room -= cost
        if not prompt.plural and rng.random() < 0.6:  # needles nobody asks for
            for _ in range(min(rng.randint(0, 3), max(0, (room - 60) // needle_size))):
                values_of[_new(rng, key_of, values_of)] = [prompt.value(rng)]
                room -= needle_size
        row.write(encode(header))
        stated = [needle(key, value) for key, values in values_of.items() for value in values]
        rng.shuffle(stated)
        if prompt.hay == "essay":
            self._write_essay(rng, row, stated, room)
        else:
            noise = prompt.hay == "noise"
            hay = [
                NOISE if noise else needle(_new(rng, key_of, values_of), prompt.value(rng))
                for _ in range(max(not noise, room // (self._noise if noise else needle_size)))
            ]
            self._write_lines(row, merged(rng, hay, stated))
        for keys in rng.sample(questions, len(questions)):
            query = ", ".join(keys[:-1]) + ", and " + keys[-1] if len(keys) > 1 else keys[0]
            row.write(encode(question.format(kind=prompt.named, query=query)))
            begin = len(row.ids)
            for key in keys:
                values = [encode(f" {value}") for value in values_of[key]]
                rng.shuffle(values)
                for place, value in enumerate(values):
                    if len(row.ids) > begin:  # whether another value comes weighs as much as the end
                        row.write(encode(","), ANSWER)
                    if prompt.plural:
                        row.write(encode(f" {key}:"), REPEATED)
                    row.choose(value, values[place:])
            row.answered(begin, row.kind)
        return row

    def _question(
        self,
        rng: random.Random,
        prompt: Needles,
        key_of: Callable[[random.Random], str],
        values_of: dict[str, list[str]],
    ) -> dict[str, list[str]]:
        """The keys of one question with their values: new ones, and now and then some that another question has."""
        if prompt.family != "queries":
            count = rng.choice(SETS) if prompt.family == "values" else 1
            return {_new(rng, key_of, values_of): [prompt.value(rng) for _ in range(count)]}
        keys = [_new(rng, key_of, values_of) for _ in range(rng.choice(SETS))]
        keys += rng.sample(sorted(values_of), min(len(values_of), rng.randint(0, 2)))
        return {key: values_of.get(key) or [prompt.value(rng)] for key in rng.sample(keys, min(4, len(keys)))}

    def _write_lines(self, row: Row, lines: list[str]) -> None:
        for place, line in enumerate(lines):
            row.write(self.source.encode(("\n" if place else "") + line))

    def _write_essay(self, rng: random.Random, row: Row, needles: list[str], tokens: int) -> None:
        book, size = rng.choice(self.source.books), 3 * max(tokens, 8)
        start = rng.randrange(max(1, len(book) - size))
        sentences = SENTENCE.split(" ".join(book[start : start + size].split()[1:]))
        for place, sentence in enumerate(merged(rng, sentences, needles)):
            row.write(self.source.encode(" " * (place > 0) + sentence))

    def tracking(self, rng: random.Random, tokens: int) -> Row:
        """Variable tracking: now and then RULER's solved example first, then one chain, as RULER's task has it."""
        row = Row("tracking")
        if tokens > 420 and rng.random() < 0.6:
            self._write_chain(rng, row, rng.randint(200, min(tokens // 2, 480)), solved=True)
            row.write(self.source.encode(rng.choice(("\n", "\n", "\n\n"))))
        self._write_chain(rng, row, tokens - len(row.ids))
        return row

    def _write_chain(self, rng: random.Random, row: Row, tokens: int, solved: bool = False) -> None:
        encode, value = self.source.encode, str(rng.randrange(10000, 99999))
        names: dict[str, None] = {}
        while len(names) < 5:
            names["".join(rng.choices(string.ascii_uppercase, k=3 if solved else 5))] = None
        chain = list(names)
        lines = [f"VAR {chain[0]} = {value}", *(f"VAR {after} = VAR {before} " for before, after in pairwise(chain))]
        row.write(encode(TRACK))
        self._write_lines(row, merged(rng, [NOISE] * max(0, (tokens - 214) // self._noise), lines))
        row.write(encode(TRACKED.format(value=value)))
        begin, named = len(row.ids), [encode(f" {name}") for name in chain]
        if solved:
            row.write([token for ids in named for token in ids], GUESSED)
        else:  # in any order, else the last of the chain is always right
            row.choose_all(rng.sample(named, len(named)))
            row.answered(begin, "tracking")

    def common(self, rng: random.Random, tokens: int) -> Row:
        """Common words: ten words six times, others once; fewer in a short row. Often after a solved example."""
        row = Row("common")
        if tokens >= 480 and rng.random() < 0.6:
            solved = self._write_list(rng, row, often=3, count=10, tokens=200)
            rng.shuffle(solved)
            row.write(self.source.encode(" " + _numbered(solved) + "\n"))
        room, size = tokens - len(row.ids) - 165, 6.2  # tokens of one word and its number
        often = min(6, max(2, int(room / (10 * size))))
        count = min(10, max(3, int((room - 10) / (often * size))))
        words = self._write_list(rng, row, often, count, max(room, 10))
        begin, named = len(row.ids), [self.source.encode(f" {word}") for word in rng.sample(words, len(words))]
        for place, word in enumerate(named):
            row.write(self.source.encode(f" {place + 1}."), ANSWER)
            row.choose(word, named[place:])
        row.answered(begin, "common")
        return row

    def _write_list(self, rng: random.Random, row: Row, often: int, count: int, tokens: int) -> list[str]:
        """A list of about `tokens` and its question; the words that come `often` times."""
        words = self.source.adjectives + self.source.nouns
        drawn = rng.sample(words, min(len(words), count + tokens // 4))

        def size(word: str) -> int:
            return len(self.source.encode(f" 12. {word}"))

        listed, room = drawn[:count] * often, tokens - often * sum(map(size, drawn[:count]))
        for word in drawn[count:]:
            room -= size(word)
            if room < 0:
                break
            listed.append(word)
        rng.shuffle(listed)
        row.write(self.source.encode(COMMON + _numbered(listed)))
        row.write(self.source.encode(MOST_COMMON))
        return drawn[:count]

    def frequent(self, rng: random.Random, tokens: int) -> Row:
        """Frequent coded words: that of rank k comes about n / (1.64 k^2) times, and dots replace the first."""
        row, kinds = Row("frequent"), max(5, rng.choice((tokens, 1024, 2048)) // 50)
        words = ["...", *dict.fromkeys("".join(rng.choices(string.ascii_lowercase, k=6)) for _ in range(kinds))]
        sizes = [len(self.source.encode(f" {word}")) for word in words]
        room = tokens - len(self.source.encode(FREQUENT)) - len(self.source.encode(MOST_FREQUENT)) - sum(sizes[1:4]) - 3
        count = int((tokens - 110) / rng.uniform(3.0, 3.6))
        while True:
            numbers = [int(count / 1.645 / rank**2) for rank in range(1, len(words) + 1)]
            if sum(size * number for size, number in zip(sizes, numbers, strict=True)) <= room:
                break
            count = int(count * 0.93)
        text = [word for word, times in zip(words, numbers, strict=True) for _ in range(times)]
        rng.shuffle(text)
        row.write(self.source.encode(FREQUENT + " ".join(text)))
        row.write(self.source.encode(MOST_FREQUENT))
        begin = len(row.ids)
        row.choose_all([self.source.encode(f" {word}") for word in rng.sample(words[1:4], 3)])
        row.answered(begin, "frequent")
        return row


def fits(name: str, tokens: int) -> bool:
    """Whether a row of so many tokens has room for one question of a kind."""
    family = name.partition("/")[0]
    return tokens >= SHORTEST["uuid" if name.endswith("/uuid") else family] if family in SHORTEST else True


def _numbered(words: list[str]) -> str:
    return " ".join(f"{place}. {word}" for place, word in enumerate(words, 1))


def _new(rng: random.Random, draw: Callable[[random.Random], str], taken: Container[str]) -> str:
    """A key that is not taken yet."""
    key = draw(rng)
    while key in taken:
        key = draw(rng)
    return key


def merged(rng: random.Random, left: list[str], right: list[str]) -> list[str]:
    """Both lists, each in its order, shuffled into one."""
    take = [True] * len(left) + [False] * len(right)
    rng.shuffle(take)
    lefts, rights = iter(left), iter(right)
    return [next(lefts) if from_left else next(rights) for from_left in take]
