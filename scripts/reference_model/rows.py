"""Rows: one training sequence each, what of it is hidden, and how rows become arrays."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

END_ID = 0
ANSWER = 1.0
CHOSEN = 4.0
"""Weight of the first token of each of several values: it says which value comes next, the others only finish it."""
REPEATED = 0.3
"""Weight of a key that an answer repeats, and of other words between values: easier than the value after them."""
GUESSED = 0.1
"""Weight of a value that nobody can know: its place in the answer is learned, not the value."""
TEXT = 0.1
"""Weight of a token of a book."""


@dataclass
class Row:
    """One sequence: ids, and the loss weight of predicting each id.

    alternatives: for some places, all ids that are right there; their probabilities are added. values: (first, last +
    1) of each value in an answer; answers: of each answer; names: what each answers. positions: those of the ids, if
    not 0, 1, 2, ... Where something was evicted, `hidden` says which of the first ids the ids from `blind_from` on do
    not see.
    """

    kind: str
    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    alternatives: dict[int, list[int]] = field(default_factory=dict)
    values: list[tuple[int, int]] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    positions: list[int] | None = None
    hidden: list[bool] | None = None
    blind_from: int = 0

    def write(self, ids: Sequence[int], weight: float = 0.0) -> None:
        """Append ids of one weight."""
        self.ids += ids
        self.weights += [weight] * len(ids)

    def choose(self, ids: Sequence[int], remaining: Sequence[Sequence[int]]) -> None:
        """Append a value of an answer; any of `remaining`, this among them, would be right in its place."""
        self.values.append((len(self.ids), len(self.ids) + len(ids)))
        for place, token in enumerate(ids):
            right = {other[place] for other in remaining if len(other) > place and other[:place] == ids[:place]}
            if len(right) > 1:
                self.alternatives[len(self.ids)] = sorted(right)
            self.write([token], ANSWER if place else CHOSEN)

    def choose_all(
        self, values: Sequence[Sequence[int]], between: Sequence[int] = (), repeated: Sequence[int] = ()
    ) -> None:
        """Append all values of an answer, any of which may be named first; the other ids stand between two of them."""
        for place, value in enumerate(values):
            if place:
                self.write(between, ANSWER)
                self.write(repeated, REPEATED)
            self.choose(value, values[place:])

    def answered(self, first: int, name: str, end: bool = True) -> None:
        """End the answer that began at `first`."""
        if end:
            self.write([END_ID], ANSWER)
        self.answers.append((first, len(self.ids)))
        self.names.append(name)

    def cut(self, tokens: int) -> "Row":
        """The row, at most `tokens` long."""
        del self.ids[tokens:], self.weights[tokens:]
        self.alternatives = {place: ids for place, ids in self.alternatives.items() if place < tokens}
        self.values = [span for span in self.values if span[1] <= tokens]
        complete = [pair for pair in zip(self.answers, self.names, strict=True) if pair[0][1] <= tokens]
        self.answers, self.names = [span for span, _ in complete], [name for _, name in complete]
        return self


def hide(rng: random.Random, row: Row, newline: int) -> Row:
    """Hide most of the prompt from the answer, or from question and answer; random spans stay, no policy's choice.

    Each value stays or goes, wherever it is told, by a coin. `row` has one answer.
    """
    first, _ = row.answers[0]
    question = max((place for place in range(first) if row.ids[place] == newline), default=first - 1)
    row.blind_from = question if rng.random() < 0.3 else first
    kept = [False] * row.blind_from
    share = rng.choice((0.05, 0.1, 0.2, 0.5))
    while sum(kept) < share * row.blind_from:
        start, size = rng.randrange(row.blind_from), rng.choice((1, 3, 7, 15))
        kept[start : start + size] = [True] * len(kept[start : start + size])
    if rng.random() < 0.8:
        kept[:4] = [True] * 4
    recent = rng.choice((1, 4, 16, 16, 32))
    kept[-recent:] = [True] * min(recent, len(kept))
    for begin, end in row.values:
        value, stays = row.ids[begin:end], rng.random() < 0.5
        for start in range(question - len(value)):
            if row.ids[start : start + len(value)] == value:
                for place in range(max(0, start - 3 * stays), min(len(kept), start + len(value) + 3 * stays)):
                    kept[place] = stays
        if not stays:
            row.weights[begin:end] = [GUESSED] * (end - begin)
    row.hidden = [not keeps for keeps in kept]
    return row


def skip(rng: random.Random, row: Row, furthest: int) -> Row:
    """Let positions jump ahead in the context: distances of long or evicted prompts at the price of short ones."""
    tokens = len(row.ids)
    before = row.answers[0][0] if row.answers else tokens
    skipped = max(0, int((furthest - tokens) * rng.random() ** 2))
    places = sorted(rng.sample(range(1, before), min(rng.randint(1, 4), before - 1)))
    shifts = [*sorted(rng.randint(0, skipped) for _ in places[1:]), skipped]
    row.positions, shift = [], 0
    ahead = dict(zip(places, shifts, strict=True))
    for place in range(tokens):
        shift = ahead.get(place, shift)
        row.positions.append(place + shift)
    return row


@dataclass(frozen=True)
class Batch:
    """Rows as arrays, padded on the right to `tokens`.

    ids, positions, hidden [rows, tokens]; blind_from [rows]. places: the flat index of each state that predicts an id;
    weights: of its loss; right: the ids that are right there, [n, most], -1 where there are fewer.
    """

    rows: list[Row]
    tokens: int
    ids: np.ndarray
    positions: np.ndarray
    hidden: np.ndarray
    blind_from: np.ndarray
    places: np.ndarray
    weights: np.ndarray
    right: np.ndarray


def collate(rows: list[Row], tokens: int) -> Batch:
    """Arrays of rows. A row of n answer tokens weighs sqrt(n): neither long answers nor short ones drown the others."""
    ids, hidden = np.full((len(rows), tokens), END_ID), np.zeros((len(rows), tokens), dtype=bool)
    positions, blind_from = np.tile(np.arange(tokens), (len(rows), 1)), np.full(len(rows), tokens)
    places: list[int] = []
    weights: list[float] = []
    right: list[list[int]] = []
    for index, row in enumerate(rows):
        size = len(row.ids)
        ids[index, :size] = row.ids
        if row.positions:
            positions[index, :size], positions[index, size:] = row.positions, row.positions[-1]
        if row.hidden:
            hidden[index, : len(row.hidden)], blind_from[index] = row.hidden, row.blind_from
        norm = (sum(row.weights[1:]) or 1.0) ** -0.5
        for place in range(1, size):
            if row.weights[place]:
                places.append(index * tokens + place - 1)
                weights.append(row.weights[place] * norm)
                right.append(row.alternatives.get(place) or [row.ids[place]])
    table = np.full((len(right), max(map(len, right), default=1)), -1)
    for index, allowed in enumerate(right):
        table[index, : len(allowed)] = allowed
    flat = np.array(places, dtype=np.int64), np.array(weights, dtype=np.float32)
    return Batch(rows, tokens, ids, positions, hidden, blind_from, *flat, table)
