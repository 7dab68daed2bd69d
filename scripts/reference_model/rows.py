"""Rows: one training sequence each, what of it is hidden, and how rows become arrays."""

import random
from dataclasses import dataclass

import numpy as np

END_ID = 0
ANSWER = 1.0
GUESSED = 0.1
"""Weight of a value that nobody can know: its place in the answer is learned, not the value; text weighs less."""


@dataclass
class Row:
    """One sequence: ids, positions, and the loss weight of predicting each id.

    `answers` are (first, last+1) spans of answer tokens, `names` what each answers. Where something was evicted, `kept`
    says which of the first tokens the tokens from `blind` on still see.
    """

    ids: list[int]
    positions: list[int]
    weights: list[float]
    answers: list[tuple[int, int]]
    kept: list[bool] | None = None
    blind: int = 0
    names: list[str] | None = None


def hide(
    rng: random.Random, row: Row, newline: int, values: list[tuple[int, int]], question_stays: bool = False
) -> None:
    """Hide most of the prompt from the answer, or from question and answer; random spans stay, no policy's choice.

    `values` are the spans of the values in the answer; each stays or goes (wherever it is told) by a coin.
    """
    first = row.answers[0][0]
    question = max(index for index in range(first) if row.ids[index] == newline)
    row.blind = question if rng.random() < 0.25 or question_stays else first
    kept = [False] * row.blind
    share = rng.choice((0.05, 0.1, 0.2, 0.5))
    while sum(kept) < share * row.blind:
        start, size = rng.randrange(row.blind), rng.choice((1, 3, 7, 15))
        kept[start : start + size] = [True] * len(kept[start : start + size])
    if rng.random() < 0.8:
        kept[:4] = [True] * 4
    recent = rng.choice((1, 4, 16, 16, 32))
    kept[-recent:] = [True] * min(recent, len(kept))
    for begin, end in values:
        value, stays = row.ids[begin:end], rng.random() < 0.5
        for start in range(question - len(value)):
            if row.ids[start : start + len(value)] == value:
                for index in range(max(0, start - 3 * stays), min(len(kept), start + len(value) + 3 * stays)):
                    kept[index] = stays
        if not stays:
            row.weights[begin:end] = [GUESSED] * (end - begin)
    row.kept = kept


def visible(rows: list[Row], longest: int) -> np.ndarray:
    """Who sees whom, [rows, 1, longest queries, longest keys]: causal, less what was evicted."""
    seen = np.repeat(np.tril(np.ones((1, 1, longest, longest), dtype=bool)), len(rows), axis=0)
    for index, row in enumerate(rows):
        if row.kept is not None:
            seen[index, 0, row.blind :, : row.blind] &= np.array(row.kept)
    return seen


def collate(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pad on the right (harmless under a causal mask): ids, positions, weights, each [rows, tokens]."""
    longest = max(len(row.ids) for row in rows)
    ids = np.full((len(rows), longest), END_ID, dtype=np.int64)
    positions = np.zeros((len(rows), longest), dtype=np.int64)
    weights = np.zeros((len(rows), longest), dtype=np.float32)
    for index, row in enumerate(rows):
        size = len(row.ids)
        ids[index, :size], weights[index, :size] = row.ids, row.weights
        positions[index, :size] = row.positions
        positions[index, size:] = row.positions[-1] + 1 + np.arange(longest - size)
    return ids, positions, weights
