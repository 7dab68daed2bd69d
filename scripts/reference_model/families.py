"""Prompts of RULER's families as training rows, and stretches of books: what the later stages read.

Only protocol sentences are RULER's (scripts/data/synthetic/{niah,variable_tracking}.py and constants.py at c3f5e3b);
every draw is ours. A row holds one context and as many questions as its length pays for, each answered and ended by
the end token, so that a token read teaches more. Several values are answered in the order of the question and
the text, each after its key (`K: 1234567, K: 7654321`): the metric allows it, and a small model needs it.
"""

import random
import re
import string
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from .data import NOISE, Source, _number, _uuid
from .rows import ANSWER, END_ID, Row, hide

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
ASSIGNED = "Question: Find all variables that are assigned the value {value} in the text above."
FOUND = (
    " Answer: According to the chain(s) of variable assignment in the text above,"
    " {count} variables are assigned the value {value}, they are: "
)
REPEATED = 0.3
"""Weight of a key that an answer repeats: easier than the value after it."""
SENTENCE = re.compile(r"(?<=[.!?]) ")


@dataclass(frozen=True)
class Blend:
    """What a stage of families reads: shares of the families (they need not sum to one) and how hard they are."""

    shares: tuple[tuple[str, float], ...]
    shortest: int
    longest: int
    step_tokens: int = 4096
    questions: int = 6
    text_weight: float = 0.04
    essay_weight: float = 0.04
    jump_share: float = 0.3
    uuid_share: float = 0.03
    hays: tuple[tuple[str, float], ...] = (("essay", 0.45), ("noise", 0.25), ("needle", 0.3))

    def length(self, rng: random.Random) -> tuple[int, int]:
        """Tokens a row (log-uniform: short ones are as frequent as long ones) and rows a step."""
        tokens = int(self.shortest * (self.longest / self.shortest) ** rng.random())
        return tokens, max(1, round(self.step_tokens / tokens))


@dataclass
class _Writing:
    """A row while it is written."""

    source: Source
    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def text(self, text: str, weight: float = 0.0) -> None:
        ids = self.source.encode(text)
        self.ids += ids
        self.weights += [weight] * len(ids)

    def answer(self, pieces: Iterable[tuple[str, float]], name: str, end: bool = True) -> None:
        """Texts with their weights, then the end token."""
        first = len(self.ids)
        for text, weight in pieces:
            self.text(text, weight)
        self.ids += [END_ID] * end
        self.weights += [ANSWER] * end
        self.answers.append((first, len(self.ids)))
        self.names.append(name)

    def row(self, positions: list[int] | None = None) -> Row:
        return Row(self.ids, positions or list(range(len(self.ids))), self.weights, self.answers, names=self.names)


class Families:
    """Draws rows of the families that a `Blend` names."""

    def __init__(self, source: Source):
        self.source = source
        pairs = [f"{number}" for number in range(100)] + [f"{number:02d}" for number in range(10)]
        self.digits = {token for pair in pairs for space in ("", " ") for token in source.encode(space + pair)[-1:]}
        self.noise = len(source.encode(NOISE)) + 1

    def row(self, rng: random.Random, blend: Blend, tokens: int) -> Row:
        """One row of a family drawn by its share, about `tokens` long."""
        family = _drawn(rng, blend.shares)
        if family == "text":
            return self.text(rng, blend, tokens)
        if family == "tracking":
            return self.tracking(rng, blend, tokens)
        return self.niah(rng, blend, tokens, family)

    def evicted(self, rng: random.Random, blend: Blend, tokens: int) -> Row:
        """A prompt with one question, most of it hidden when the answer is written; see `hide`."""
        several = rng.random() < 0.33
        family = "values" if several else "single"
        row = self.niah(rng, replace(blend, questions=1, uuid_share=0.0), tokens, family)
        first, last = row.answers[0]
        numbers = [row.ids[at] in self.digits for at in range(first, last)]
        starts = [at for at in range(len(numbers)) if numbers[at] and not (at and numbers[at - 1])]
        spans = [(first + at, first + numbers.index(False, at)) for at in starts]
        hide(rng, row, self.source.newline, spans, question_stays=several)  # an answer of several repeats the key
        return row

    def text(self, rng: random.Random, blend: Blend, tokens: int) -> Row:
        """A stretch of a book with its line ends, every token predicted."""
        book = rng.choice(self.source.books)
        start = rng.randrange(max(1, len(book) - tokens * 4))
        ids = self.source.encode(book[start : start + tokens * 4])[:tokens]
        return Row(ids, list(range(len(ids))), [blend.text_weight] * len(ids), [])

    def niah(self, rng: random.Random, blend: Blend, tokens: int, family: str) -> Row:
        """Families `single` (one value of one key), `values` (four of one), `queries` (one of each of four)."""
        hay = _drawn(rng, blend.hays)
        kind, draw_key, draw_value = "numbers", self.source.word_key, _number
        if family == "single" and rng.random() < blend.uuid_share:
            kind, draw_value = "uuids", _uuid
            draw_key = _uuid if hay == "needle" else draw_key
        plural = family != "single"
        questions: list[list[str]] = []
        held: dict[str, list[str]] = {}
        cost = 0
        most, full = rng.randint(1, blend.questions), rng.uniform(0.5, 1.0) * tokens - 30
        while len(questions) < most:
            new = [_new(rng, draw_key, held) for _ in range(rng.choice((2, 3, 4, 4, 4)) if family == "queries" else 1)]
            if family == "queries" and held:  # ask for some keys a second time, in another company
                new += rng.sample(sorted(held), min(len(held), rng.randint(0, 2)))
                new = rng.sample(new, min(4, len(new)))
            count = rng.choice((2, 3, 4, 4, 4)) if family == "values" else 1
            stated = {key: held.get(key) or [draw_value(rng) for _ in range(count)] for key in new}
            price = 50 + sum(
                22 * len(values) * (key not in held) + 22 + 8 * len(values) for key, values in stated.items()
            )
            if questions and cost + price > full:
                break
            cost += price
            held |= stated
            questions.append(list(stated))
        if family == "single" and rng.random() < 0.6:  # needles nobody asks for
            held |= {draw_key(rng): [draw_value(rng)] for _ in range(rng.randint(0, 3))}
        needles = [NEEDLE.format(kind=kind, key=key, value=value) for key in held for value in held[key]]
        rng.shuffle(needles)
        room = tokens - cost - 30
        writing = _Writing(self.source)
        named = kind if plural else kind[:-1]
        writing.text(HEADERS[plural].format(kind=named))
        if hay == "essay":
            self._essay(rng, writing, needles, room, blend.essay_weight)
        else:
            others = [
                NOISE
                if hay == "noise"
                else NEEDLE.format(kind=kind, key=_new(rng, draw_key, held), value=draw_value(rng))
                for _ in range(max(1, room // (self.noise if hay == "noise" else 22 if kind == "numbers" else 50)))
            ]
            writing.text("\n".join(_scattered(rng, others, needles)))
        after = len(writing.ids)
        told_at = {value: place for place, value in enumerate(_values(needles))}
        rng.shuffle(questions)
        for keys in questions:
            listed = ", ".join(keys[:-1]) + ", and " + keys[-1] if len(keys) > 1 else keys[0]
            writing.text(QUESTIONS[plural].format(kind=named, query=listed))
            values = [(key, value) for key in keys for value in sorted(held[key], key=told_at.__getitem__)]
            pieces = []
            for place, (key, value) in enumerate(values):
                pieces += [((", " if place else " ") + f"{key}:", REPEATED)] if plural else []
                pieces.append((f" {value}", ANSWER))
            writing.answer(pieces, family if plural else f"{family} {hay}")
        return writing.row(self._jumps(rng, len(writing.ids), after) if rng.random() < blend.jump_share else None)

    def tracking(self, rng: random.Random, blend: Blend, tokens: int) -> Row:
        """Variable tracking: now and then RULER's solved example first, one to four chains, several questions."""
        writing = _Writing(self.source)
        if tokens > 500 and rng.random() < 0.5:
            self._chains(rng, writing, rng.randint(250, min(tokens // 2, 500)), 1, 3, True)
            writing.text("\n\n")
        self._chains(rng, writing, tokens - len(writing.ids), rng.randint(1, 4), 5, False)
        return writing.row()

    def _chains(
        self, rng: random.Random, writing: _Writing, tokens: int, chains: int, letters: int, example: bool
    ) -> None:
        chains = max(1, min(chains, tokens // 220))
        names = ["".join(rng.choices(string.ascii_uppercase, k=letters)) for _ in range(5 * chains)]
        values, lines = [str(rng.randrange(10000, 99999)) for _ in range(chains)], []
        for chain, value in enumerate(values):
            own = names[5 * chain : 5 * chain + 5]
            chained = [f"VAR {own[0]} = {value}"]
            chained += [f"VAR {after} = VAR {before} " for before, after in pairwise(own)]
            lines = _merged(rng, lines, chained)
        room = tokens - 20 - chains * (5 * 16 + 65 + 32)
        lines = _merged(rng, [NOISE] * (max(0, room) // self.noise), lines)
        writing.text(TRACK + "\n".join(lines))
        for chain in rng.sample(range(chains), chains):
            writing.text("\n" + ASSIGNED.format(value=values[chain]) + FOUND.format(count=5, value=values[chain]))
            chained = [(f" {name}", ANSWER) for name in names[5 * chain : 5 * chain + 5]]
            writing.answer(chained, "tracking", end=not example)

    def _essay(self, rng: random.Random, writing: _Writing, needles: list[str], tokens: int, weight: float) -> None:
        book = rng.choice(self.source.books)
        size = int(max(tokens, 20) * 2.55)
        start = rng.randrange(max(1, len(book) - size))
        words = book[start : start + size].split()[1:]
        sentences = SENTENCE.split(" ".join(words))
        for place, sentence in enumerate(_scattered(rng, sentences, needles)):
            is_needle = sentence.startswith(NEEDLE[:20]) and sentence in needles
            writing.text(" " * (place > 0) + sentence, 0.0 if is_needle else weight)

    def _jumps(self, rng: random.Random, tokens: int, before: int) -> list[int]:
        """Positions that skip ahead in the context: distances of long prompts at the price of short ones."""
        skipped = int((4095 - tokens) * rng.random() ** 2)
        at = sorted(rng.sample(range(1, before), min(rng.randint(1, 4), before - 1)))
        cuts = [*sorted(rng.randint(0, max(0, skipped)) for _ in at[1:]), max(0, skipped)]
        positions, done, shift = [], 0, 0
        for place in range(tokens):
            if done < len(at) and place == at[done]:
                shift, done = cuts[done], done + 1
            positions.append(place + shift)
        return positions


def _drawn(rng: random.Random, shares: tuple[tuple[str, float], ...]) -> str:
    return rng.choices([name for name, _ in shares], [share for _, share in shares])[0]


def _new(rng: random.Random, draw: Callable[[random.Random], str], held: Container[str]) -> str:
    """A key that is not held yet."""
    key = draw(rng)
    while key in held:
        key = draw(rng)
    return key


def _scattered(rng: random.Random, hay: list[str], needles: list[str]) -> list[str]:
    """The needles in their order at random places of the hay."""
    return _merged(rng, hay, needles)


def _merged(rng: random.Random, left: list[str], right: list[str]) -> list[str]:
    """Both lists, each in its order, shuffled into one."""
    take = [True] * len(left) + [False] * len(right)
    rng.shuffle(take)
    lefts, rights = iter(left), iter(right)
    return [next(lefts) if from_left else next(rights) for from_left in take]


def _values(needles: list[str]) -> list[str]:
    return [needle.rsplit(": ", 1)[1][:-1] for needle in needles]
