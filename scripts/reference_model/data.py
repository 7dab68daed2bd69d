"""What the reference model reads while training: copying, needle prompts of growing difficulty, and plain book text.

A batch is drawn from its own generator, named after seed and step: step 1000 is the same batch in an uninterrupted
run and after a resume. These streams share nothing with the official generator's seeds (42 and whatever an evaluation
asks for), and draw keys from the training words only.

Needle prompts have five forms, from `key value` (solved by copying alone) to the official RULER sentences; several
questions may follow one haystack, each answered and ended by the end token, which gives more answers per token read.
"""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from .rows import ANSWER, END_ID, Row, hide

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def haystack_header(kind: str) -> str:
    """RULER's first line (protocol text), for one value of one key."""
    opening = f"A special magic {kind} is hidden within the following text. Make sure to memorize it."
    return f"{opening} I will quiz you about the {kind} afterwards.\n"


def needle_text(kind: str, key: str, value: str, form: int = 4) -> str:
    """A needle; forms 3 and 4 are RULER's sentence, lower ones shorter."""
    return (
        f" {key} {value}.",
        f" {key} is: {value}.",
        f" magic {kind}s for {key} is: {value}.",
        f"One of the special magic {kind}s for {key} is: {value}.",
    )[min(form, 3)]


def question_text(kind: str, key: str, form: int = 4) -> str:
    """A question with its answer prefix; form 4 is RULER's."""
    return (
        f"\n {key}",
        f"\n {key} is",
        f"\n {kind} for {key} text is",
        f"\n The special magic {kind} for {key} provided text is",
        f"\nWhat is the special magic {kind} for {key} mentioned in the provided text?"
        f" The special magic {kind} for {key} mentioned in the provided text is",
    )[form]


@dataclass(frozen=True)
class Mix:
    """The shape of a stage's needle prompts."""

    forms: tuple[int, ...]
    tokens: int
    questions: int
    needles: int
    noise_share: float = 0.3
    book_share: float = 0.0
    uuid_share: float = 0.0
    jump_share: float = 0.0
    empty_share: float = 0.0


@dataclass(frozen=True)
class Spaced:
    """The shape of a stage's spaced pairs.

    At most this many filler tokens before a value in the context (`filler_before`) and in an answer (`filler_after`).
    """

    filler_before: int
    filler_after: int
    tokens: int


class Source:
    """Draws rows. It knows words, books and the tokenizer, nothing of models."""

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        vocabulary: int,
        adjectives: list[str],
        nouns: list[str],
        books: list[str],
    ):
        self.encode, self.vocabulary, self.adjectives, self.nouns, self.books = (
            encode,
            vocabulary,
            adjectives,
            nouns,
            books,
        )
        self.newline = encode("\n")[0]

    def copying(self, rng: random.Random, tokens: int) -> Row:
        """Random tokens, then random slices of them in random order with gaps.

        Only an induction head predicts the slices.
        """
        tokens = rng.randint(max(24, tokens // 2), tokens)
        first = [rng.randrange(1, self.vocabulary) for _ in range(tokens // 2)]
        ids, weights, answers = list(first), [0.0] * len(first), []
        while len(ids) < tokens:
            ids += (rng.randrange(1, self.vocabulary) for _ in range(rng.randint(0, 2)))
            start = rng.randrange(len(first) - 3)
            piece = first[start : start + rng.randint(3, 12)]
            weights += [0.0] * (len(ids) + 1 - len(weights))
            answers.append((len(ids) + 1, len(ids) + len(piece)))
            ids += piece
            weights += [ANSWER] * (len(ids) - len(weights))
        return Row(ids, list(range(len(ids))), weights, answers)

    def spaced(self, rng: random.Random, shape: Spaced, tokens: int) -> Row:
        """Keys and values of random tokens: `key fill value` told once each, then `key other-fill value` shuffled.

        The densest practice of what RULER asks: find the value whose key stands some tokens before it.
        """
        filler_before = [rng.randrange(1, self.vocabulary) for _ in range(rng.randint(0, shape.filler_before))]
        filler_after = [rng.randrange(1, self.vocabulary) for _ in range(rng.randint(0, shape.filler_after))]
        key_size, value_size = rng.randint(1, 3), rng.randint(1, 2)
        pair = 2 * (key_size + value_size) + len(filler_before) + len(filler_after)
        pairs = [
            tuple([rng.randrange(1, self.vocabulary) for _ in range(size)] for size in (key_size, value_size))
            for _ in range(max(2, tokens // pair))
        ]
        ids = [token for key, value in pairs for token in (*key, *filler_before, *value)]
        weights, answers = [0.0] * len(ids), []
        for key, value in rng.sample(pairs, len(pairs)):
            ids += [*key, *filler_after]
            answers.append((len(ids), len(ids) + len(value)))
            ids += value
            weights += [0.0] * (len(key) + len(filler_after)) + [ANSWER] * len(value)
        return Row(ids, list(range(len(ids))), weights, answers)

    def text(self, rng: random.Random, tokens: int) -> Row:
        """A stretch of a book, every token predicted."""
        ids = self.encode(self._book_lines(rng, tokens * 5))[:tokens]
        return Row(ids, list(range(len(ids))), [ANSWER] * len(ids), [])

    def needles(self, rng: random.Random, mix: Mix, tokens: int | None = None) -> Row:
        """A haystack, then questions with answers; about `tokens` long, or at random up to the mix's length."""
        form = rng.choice(mix.forms)
        draw_key, draw_value, kind = self.word_key, _number, "number"
        if rng.random() < mix.uuid_share:
            draw_value, kind = _uuid, "uuid"
            draw_key = _uuid if rng.random() < 0.6 else self.word_key
        questions = rng.randint(1, mix.questions)
        room = (tokens or rng.randint(mix.tokens // 2, mix.tokens)) - 8
        room -= len(self.encode(haystack_header(kind))) if form >= 3 else 0
        lines, pairs, used = [], [], 0
        while True:
            key, value = draw_key(rng), draw_value(rng)
            line = needle_text(kind, key, value, form)
            cost = len(self.encode(line)) + 1
            ask = (
                (len(self.encode(question_text(kind, key, form))) + len(self.encode(" " + value)) + 1)
                if len(pairs) < questions
                else 0
            )
            if lines and (used + cost + ask > room or len(lines) >= mix.needles):
                break
            used += cost + ask
            lines.append(line)
            if len(pairs) < questions:
                pairs.append((key, value))
        kind_of_hay = rng.random()
        if kind_of_hay < mix.noise_share + mix.book_share:
            lines, pairs = lines[: rng.randint(1, 4)], pairs[: 1 + (rng.random() < 0.3)]
            pairs = pairs[: len(lines)]
            used = sum(len(self.encode(line)) + 1 for line in lines) + 60 * len(pairs)
            while used < room:
                line = (
                    NOISE
                    if kind_of_hay < mix.noise_share or not self.books
                    else self._book_lines(rng, rng.randint(60, 240))
                )
                used += len(self.encode(line)) + 1
                lines.append(line)
        if rng.random() < mix.empty_share:
            lines = [line for line in lines if not any(key in line for key, _ in pairs[:1])] or [NOISE]
            pairs = pairs[:1]
        rng.shuffle(lines)
        rng.shuffle(pairs)
        context = (haystack_header(kind) if form >= 3 else "") + "\n".join(lines)
        ids = self.encode(context)
        weights = [0.0] * len(ids)
        answers = []
        for key, value in pairs:
            question = self.encode(question_text(kind, key, form))
            answer = [*self.encode(" " + value), END_ID]
            weights += [0.0] * len(question) + [ANSWER] * len(answer)
            ids += question
            answers.append((len(ids), len(ids) + len(answer)))
            ids += answer
        positions = self._jump(rng, ids, answers[0][0]) if rng.random() < mix.jump_share else list(range(len(ids)))
        return Row(ids, positions, weights, answers)

    def evicted(self, rng: random.Random, mix: Mix, tokens: int) -> Row:
        """A prompt with one question of which most is gone when the answer is written, or when the question is read.

        The value stays in every second row. Where it is gone any number will do, but it must end as others do.
        """
        row = self.needles(rng, replace(mix, questions=1), tokens)
        first, last = row.answers[0]
        hide(rng, row, self.newline, [(first, last - 1)])
        return row

    def word_key(self, rng: random.Random) -> str:
        """A key as RULER makes them, from training words."""
        return f"{rng.choice(self.adjectives)}-{rng.choice(self.nouns)}"

    def _jump(self, rng: random.Random, ids: list[int], last: int) -> list[int]:
        """Positions that skip ahead at some line ends.

        Distances of long prompts (and of evicted ones) at the price of short ones.
        """
        reach, at, out = rng.choice((64, 256, 1024)), 0, []
        for index, token in enumerate(ids):
            out.append(at)
            at += 1 + (rng.randrange(reach) if token == self.newline and index < last and rng.random() < 0.3 else 0)
        return out if out[-1] < 4096 else list(range(len(ids)))

    def _book_lines(self, rng: random.Random, characters: int) -> str:
        book = rng.choice(self.books)
        start = rng.randrange(max(1, len(book) - characters))
        return " ".join(book[start : start + characters].split())


def _number(rng: random.Random) -> str:
    return str(rng.randint(10**6, 10**7 - 1))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
