"""What reading, cutting and a step take at least: floating-point operations and bytes that must move.

Two operations a multiply-add. Matrix products and attention are counted, element-wise work is not: it is what keeps a
real pass from its bound. Weights are read once a pass; of keys and values what attention reads, once. Scores read keys
and values once, however many they sum up in that pass. Embeddings are looked up, not multiplied, unless they are the
head too. Of a mixture of experts every expert is counted: a bound from above on operations, not from below.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What of a model decides its work.

    inner: weights multiplied at every token, the head left out. head: those of the head. bytes_each: of a number.
    windows: by layer, how far back a query sees; None for all.
    """

    inner: int
    head: int
    bytes_each: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]

    @property
    def pair_bytes(self) -> int:
        """A key and its value."""
        return 2 * self.head_dim * self.bytes_each

    @property
    def pass_bytes(self) -> int:
        """The weights that a pass reads."""
        return (self.inner + self.head) * self.bytes_each


def seen_pairs(tokens: int, window: int | None) -> int:
    """Pairs of query and key of a causal prompt: a query sees itself and all before, or the newest of a window."""
    if window is None or window >= tokens:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window


def prefill_flops(shape: Shape, tokens: int, passes: int = 1) -> int:
    """Reading a prompt: 2 a weight and token, 4 head_dim a query head and pair it sees, the head once a pass."""
    pairs = sum(seen_pairs(tokens, window) for window in shape.windows)
    return 2 * shape.inner * tokens + 2 * shape.head * passes + 4 * shape.heads * shape.head_dim * pairs


def prefill_bytes(shape: Shape, tokens: int, passes: int = 1) -> int:
    """Weights once a pass, keys and values written once."""
    return shape.pass_bytes * passes + len(shape.windows) * shape.kv_heads * tokens * shape.pair_bytes


def score_bytes(full_bytes: float, kept_bytes: float) -> float:
    """Keys and values read once to score them, and those that stay read and written once."""
    return full_bytes + 2 * kept_bytes


def step_flops(shape: Shape, held: Sequence[tuple[int, int]], tails: float) -> float:
    """One new token of every sequence.

    held: of each sequence the pairs kept in all layers, and the query heads that read each of them. tails: new tokens
    that a step sees behind them, on average, the one it reads included.
    """
    later = len(shape.windows) * shape.heads * tails
    pairs = sum(kept * group + later for kept, group in held)
    return 2 * (shape.inner + shape.head) * len(held) + 4 * shape.head_dim * pairs


def step_bytes(shape: Shape, held_bytes: float, tail_bytes: float) -> float:
    """Weights once, however many sequences, and the caches of all of them."""
    return shape.pass_bytes + held_bytes + tail_bytes
