"""The roofline of a timed cell: least operations and bytes of its parts, and the measured speed of the device.

An operation is a multiply or an add: a multiply-add counts two. Matrix products and attention are counted, element-wise
work is not; it is what keeps a real pass from its bound. Weights are read once per pass; attention reads each key and
value once. Scores read keys and values once, however many scores that pass computes. Embeddings are looked up, not
multiplied, unless they are the output head too. In a mixture of experts every expert is counted: an upper bound on
operations, not a lower one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvbench.models.loading.architecture import cache_heads, sliding_windows, text_config

REPEATS = 5
COPIED = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Bytes of the array that is copied: far more than the caches of a processor hold."""
SIDE = {"cuda": 8192, "cpu": 1024}
"""Rows and columns of the matrices that are multiplied."""


def ceiling(device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> dict[str, float]:
    """Return the best of a few copies and matrix products, after one that is not timed.

    Measured because a data sheet states a speed that the device never reaches. scale: of the sizes, smaller for tests.
    """
    kind = device.type if device.type in COPIED else "cpu"
    source = torch.ones(int(COPIED[kind] * scale), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_seconds = _best(lambda: target.copy_(source), device)
    copied, side = len(source), max(8, int(SIDE[kind] * scale))
    del source, target
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    product = torch.empty_like(matrix)
    product_seconds = _best(lambda: torch.mm(matrix, matrix, out=product), device)
    return {
        "device_copy_bytes_per_second": 2 * copied / copy_seconds,
        "device_flops_per_second": 2 * side**3 / product_seconds,
    }


def _best(work: Callable[[], object], device: torch.device) -> float:
    """Return the shortest seconds of some repetitions, each waited for."""

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    seconds = []
    for _ in range(REPEATS):
        sync()
        start = time.perf_counter()
        work()
        sync()
        seconds.append(time.perf_counter() - start)
    return max(min(seconds), 1e-9)


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model that its work depends on.

    inner: weights multiplied at every token, without the output head. head: weights of the output head. bytes_each: of
    a number. windows: per layer, how far back a query sees; None for everything.
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
        return 2 * self.head_dim * self.bytes_each

    @property
    def pass_bytes(self) -> int:
        """Of the weights that a pass reads."""
        return (self.inner + self.head) * self.bytes_each


def shape_of(model: Any) -> Shape:
    """Return the shape of a loaded transformers model. Norms and biases are not counted."""
    heads, (kv_heads, head_dim) = text_config(model.config).num_attention_heads, cache_heads(model.config)
    head, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    matrices = (weight for weight in model.parameters() if weight.dim() >= 2)
    inner = sum(weight.numel() for weight in matrices if weight is not head and weight is not table)
    return Shape(
        inner=inner,
        head=head.numel(),
        bytes_each=table.itemsize,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        windows=tuple(sliding_windows(model.config).values()),
    )


def weight_bytes(model: Any) -> int:
    """Return bytes of all parameters; torch lists each once."""
    return sum(weight.nbytes for weight in model.parameters())


def attended_pairs(tokens: int, window: int | None) -> int:
    """Query-key pairs of a causal prompt: a query sees itself and all tokens before it, or the newest of a window."""
    if window is None or window >= tokens:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window


def prefill_flops(shape: Shape, tokens: int, passes: int = 1) -> int:
    """Return a prefill: 2 per weight and token, 4 head_dim per query head and query-key pair, the head once per
    pass.
    """
    pairs = sum(attended_pairs(tokens, window) for window in shape.windows)
    return 2 * shape.inner * tokens + 2 * shape.head * passes + 4 * shape.heads * shape.head_dim * pairs


def prefill_bytes(shape: Shape, tokens: int, passes: int = 1) -> int:
    """Return a prefill: weights once per pass, keys and values written once."""
    return shape.pass_bytes * passes + len(shape.windows) * shape.kv_heads * tokens * shape.pair_bytes


def score_bytes(full_bytes: float, kept_bytes: float) -> float:
    """Scoring and compaction: keys and values read once, those that are kept read and written once more."""
    return full_bytes + 2 * kept_bytes


def step_flops(shape: Shape, held: Sequence[tuple[int, int]], tails: float) -> float:
    """Return a decode step of all sequences.

    held: per sequence the KV pairs kept in all layers, and the query heads that read each of them. tails: new tokens
    that a step attends to, on average, including its own.
    """
    tail_pairs = len(shape.windows) * shape.heads * tails
    pairs = sum(kept * group + tail_pairs for kept, group in held)
    return 2 * (shape.inner + shape.head) * len(held) + 4 * shape.head_dim * pairs


def step_bytes(shape: Shape, held_bytes: float, tail_bytes: float) -> float:
    """Return a decode step of all sequences: weights once, and the caches of all of them."""
    return shape.pass_bytes + held_bytes + tail_bytes
