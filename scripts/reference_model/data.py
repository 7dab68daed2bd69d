"""What rows are drawn from, and the rows of random tokens: copies, pairs, lists, sets of values, counts.

Random tokens teach what every prompt needs, more densely than prompts do: to find a key, to leave out the values that
are already named, to see what is frequent. A batch is drawn from its own generator, named after seed and step, so that
step 1000 is the same batch in an uninterrupted run and after a resume. Nothing is shared with the benchmark's
generators or seeds, and keys are drawn from the training words only.
"""

import random
import uuid
from collections.abc import Callable
from itertools import repeat

from .rows import ANSWER, Row


class Source:
    """Words, books and the tokenizer; it knows nothing of models."""

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        vocabulary: int,
        adjectives: list[str],
        nouns: list[str],
        books: list[str],
    ):
        self._encode, self.vocabulary = encode, vocabulary
        self.adjectives, self.nouns, self.books = adjectives, nouns, books
        self._short: dict[str, list[int]] = {}
        (self.newline,) = encode("\n")

    def encode(self, text: str) -> list[int]:
        """Token ids; those of short texts are remembered."""
        if len(text) > 120 or len(self._short) > 200_000:
            return self._encode(text)
        if text not in self._short:
            self._short[text] = self._encode(text)
        return self._short[text]

    def key(self, rng: random.Random) -> str:
        """A key as RULER makes them, from training words."""
        return f"{rng.choice(self.adjectives)}-{rng.choice(self.nouns)}"

    def tokens(self, rng: random.Random, count: int) -> list[int]:
        """Random tokens, never the end token."""
        return [rng.randrange(1, self.vocabulary) for _ in range(count)]

    def copying(self, rng: random.Random, tokens: int) -> Row:
        """Random tokens, then slices of them in random order with gaps: only an induction head predicts the slices."""
        row = Row("copy")
        first = self.tokens(rng, rng.randint(tokens // 3, tokens // 2))
        row.write(first)
        while len(row.ids) < tokens:
            row.write(self.tokens(rng, rng.randint(0, 2)))
            start = rng.randrange(max(1, len(first) - 3))
            piece = first[start : start + rng.randint(3, 12)]
            row.write(piece[:1])
            begin = len(row.ids)
            row.write(piece[1:], ANSWER)
            row.answered(begin, "copy", end=False)
        return row.cut(tokens)

    def spaced(self, rng: random.Random, tokens: int) -> Row:
        """`key fill value` told once each, then `key other-fill value` for some, shuffled."""
        row = Row("spaced")
        before, after = (self.tokens(rng, rng.randint(0, 6)) for _ in range(2))
        key_size, value_size, loose = rng.randint(1, 4), rng.randint(1, 3), rng.randint(0, 2)
        size = key_size + value_size + loose
        stated_size, question_size = size + len(before), size + len(after)
        questions = max(1, tokens // (stated_size + question_size) // rng.choice((1, 2)))
        count = max(questions, (tokens - questions * question_size) // stated_size)
        pairs = [(self.tokens(rng, key_size), self.tokens(rng, value_size)) for _ in range(count)]
        for key, value in pairs:
            row.write(self.tokens(rng, rng.randint(0, loose)) + key + before + value)
        for key, value in rng.sample(pairs, questions):
            row.write(self.tokens(rng, rng.randint(0, loose)) + key + after)
            begin = len(row.ids)
            row.write(value, ANSWER)
            row.answered(begin, "spaced", end=False)
        return row.cut(tokens)

    def lists(self, rng: random.Random, tokens: int) -> Row:
        """`mark item` several times among other tokens, then all items in any order; then the next list.

        Almost every token of an answer says whether the items that are already named are left out.
        """
        row, words = Row("lists"), self.adjectives + self.nouns
        kind, longest, loose = rng.choice(("tokens", "numbers", "words")), rng.choice((4, 8, 12)), rng.randint(0, 3)
        item_of = {
            "tokens": lambda: self.tokens(rng, rng.randint(1, 2)),
            "numbers": lambda: self.encode(f" {rng.randint(10, 99)}"),
            "words": lambda: self.encode(f" {rng.choice(words)}"),
        }[kind]
        between, repeats = self.tokens(rng, rng.randint(0, 1)), rng.random() < 0.5
        while len(row.ids) < tokens:
            mark, question = self.tokens(rng, rng.randint(1, 3)), self.tokens(rng, rng.randint(1, 3))
            items = {tuple(item_of()): None for _ in range(rng.randint(2, longest))}
            for item in items:
                row.write(self.tokens(rng, rng.randint(0, loose)) + mark + list(item))
            row.write(question + mark)
            begin = len(row.ids)
            row.choose_all(rng.sample([list(item) for item in items], len(items)), between, mark if repeats else [])
            row.answered(begin, "lists")
        return row.cut(tokens)

    def sets(self, rng: random.Random, tokens: int) -> Row:
        """Several values per key, told one by one in random order; all values of a key are the answer, in any order."""
        row = Row("sets")
        key_size, value_size = rng.randint(1, 2), rng.randint(1, 2)
        before, after, between = (self.tokens(rng, count) for count in (rng.randint(0, 3), rng.randint(0, 3), 1))
        repeats, groups, left = rng.random() < 0.5, list[tuple[list[int], list[list[int]]]](), tokens
        while True:
            count = rng.randint(1, 4)
            left -= count * (key_size + len(before) + value_size + 1) + key_size + len(after) + 1
            left -= count * (value_size + 1 + key_size * repeats)
            if groups and left < 0:
                break
            groups.append((self.tokens(rng, key_size), [self.tokens(rng, value_size) for _ in range(count)]))
        pairs = [pair for key, values in groups for pair in zip(repeat(key), values, strict=False)]
        for key, value in rng.sample(pairs, len(pairs)):
            row.write(key + before + value + self.tokens(rng, rng.randint(0, 1)))
        for key, values in rng.sample(groups, len(groups)):
            row.write(key + after)
            begin = len(row.ids)
            row.choose_all(rng.sample(values, len(values)), between, key if repeats else [])
            row.answered(begin, f"sets {len(values)}")
        return row.cut(tokens)

    def counts(self, rng: random.Random, tokens: int) -> Row:
        """Words of random tokens in random order; the most frequent are the answer.

        Either their numbers fall as 1 / rank^2 and three are asked for, or some come often, all others once.
        """
        row, falling = Row("counts"), rng.random() < 0.5
        size, between, mark = rng.randint(1, 3), self.tokens(rng, rng.random() < 0.7), self.tokens(rng, 2)
        frequent = 3 if falling else rng.randint(2, 6)
        room = (tokens - 6 - frequent * (size + len(between) + 1)) // (size + len(between))
        if falling:
            numbers = [max(1, int(room / 1.64 / rank**2)) for rank in range(1, frequent + rng.randint(3, 15))]
        else:
            often = rng.choice((3, 4, 6))
            numbers = [often] * frequent + [1] * max(3, room - often * frequent)
        words = [self.tokens(rng, size) for _ in numbers]
        text = [word for word, number in zip(words, numbers, strict=True) for _ in range(number)]
        rng.shuffle(text)
        row.write(mark)
        for word in text[:room]:
            row.write(word + between)
        row.write(mark)
        begin = len(row.ids)
        row.choose_all(rng.sample(words[:frequent], frequent), repeated=between)
        row.answered(begin, "counts falling" if falling else "counts even")
        return row.cut(tokens)


def number(rng: random.Random) -> str:
    """A value as RULER makes them: seven digits."""
    return str(rng.randint(10**6, 10**7 - 1))


def random_uuid(rng: random.Random) -> str:
    """A UUID as RULER makes them."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
