"""Cases of kind `decode` and `blockwise`: every cut through the step of a real run, compared one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.attention import Rule, over_layer
from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.conformance.golden.case import AXES, Case
from kvbench.conformance.golden.spec import schedule_of
from kvbench.conformance.golden.tolerance import worst_error
from kvbench.eviction.evict import Decision, Eviction
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction, Step, capacity_after

Cuts = list[tuple[Step, ...]]
"""What happened at every cut, layer by layer."""


def after_prompt(case: Case, eviction: Eviction, cache: KVCache, decision: Decision, smaller: KVCache) -> Cuts:
    """The cuts that follow that of the prompt, one after every generated token."""
    stepping = IncrementalEviction(
        eviction, capacity_after(cache, decision, eviction.budget.of(cache.seen)), decoding=True
    )
    layers = stepping.remember(cache, decision, smaller).layers
    tokens = zip(*(torch.from_numpy(case.arrays[f"{name}_step"]) for name in ("query", "key", "value")), strict=True)
    return list(_cuts(stepping, layers, cache.seen, tokens))


def block_by_block(case: Case, eviction: Eviction) -> Cuts:
    """The cuts after every block of the prompt, from an empty cache on."""
    layers, query_heads, kv_heads, tokens, head_dim = (case.shape[axis] for axis in AXES)
    stepping = IncrementalEviction(eviction, eviction.budget.of(tokens))
    arrays = (torch.from_numpy(case.arrays[name]) for name in ("query", "key", "value"))
    blocks = zip(*(array.split(schedule_of(case)["block"], dim=2) for array in arrays), strict=True)
    nothing = [stepping.start(index, query_heads, kv_heads, torch.empty(head_dim)) for index in range(layers)]
    return list(_cuts(stepping, nothing, 0, blocks))


def _cuts(
    stepping: IncrementalEviction,
    layers: Sequence[LayerCache],
    seen: int,
    blocks: Iterator[tuple[Tensor, Tensor, Tensor]],
) -> Iterator[tuple[Step, ...]]:
    """Read queries, keys and values [layers, heads, new, head_dim], cut, and go on with what is left."""
    for queries, keys, values in blocks:
        grown = [layer.append(k, v, seen) for layer, k, v in zip(layers, keys, values, strict=True)]
        rule = Rule(keys.shape[-1] ** -0.5)
        rows = [over_layer(new, layer, rule) for layer, new in zip(grown, queries, strict=True)]
        steps = tuple(stepping.step(layer, voting) for layer, voting in zip(grown, rows, strict=True))
        yield steps
        layers, seen = [step.layer for step in steps], seen + keys.shape[2]


@dataclass(frozen=True)
class Got:
    """The arrays of a case's cuts as they came out, in the order of positions and padded like the expected ones."""

    kept_positions: np.ndarray
    step_lengths: np.ndarray
    step_scores: np.ndarray
    accumulator: np.ndarray


def compare_cuts(case: Case, cuts: Cuts) -> tuple[float, str | None]:
    """The largest error of a score over its tolerance, and the first thing that is not as expected."""
    got = _arrays(cuts)
    for name in ("step_lengths", "kept_positions"):
        if problem := _differ(name, getattr(got, name), case.arrays[name]):
            return float("inf"), problem
    worst = 0.0
    for name in ("step_scores", "accumulator"):
        if name in case.arrays:
            error, problem = _off(case, name, getattr(got, name))
            worst = max(worst, error)
            if problem:
                return error, problem
    return worst, None


def last_cut(case: Case, cuts: Cuts) -> tuple[float, str | None]:
    """A block-wise case expects the last cut by position: its scores, the lengths and what is kept."""
    shape = case.arrays["scores"].shape
    scores, kept = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for layer, step in enumerate(cuts[-1]):
        for head, left in enumerate(_heads(step.layer)):
            kept[layer, head, left.numpy()] = True
            scores[layer, head, step.positions[head].numpy()] = step.scores[head].double().numpy()
    if (problem := _differ("kept", kept, case.arrays["kept"])) is None:
        problem = _differ("lengths", kept.sum(axis=2), case.arrays["lengths"])
    error = worst_error(scores, case.arrays["scores"], case.spec)
    return error, problem or (None if error <= 1 else f"scores are off by {error:.3g} x the tolerance")


def _arrays(cuts: Cuts) -> Got:
    kept, scores, sums = [], [], []
    for step in (step for steps in cuts for step in steps):
        running = step.layer.state.get(ACCUMULATED, torch.full_like(step.layer.positions, torch.nan, dtype=torch.float))
        for head, (left, total) in enumerate(zip(_heads(step.layer), _heads(step.layer, running), strict=True)):
            kept.append(left.sort().values)
            sums.append(total[left.argsort()].double())
            scores.append(step.scores[head][step.positions[head].argsort()].double())
    shape = (len(cuts), len(cuts[0]), cuts[0][0].layer.cache_heads)
    lengths = np.array([len(left) for left in kept]).reshape(shape)
    padded = (_padded(kept, -1, shape), lengths, _padded(scores, np.nan, shape), _padded(sums, np.nan, shape))
    return Got(*padded)


def _heads(layer: LayerCache, tensor: Tensor | None = None) -> tuple[Tensor, ...]:
    """A per-pair tensor, the positions by default, head by head."""
    return (layer.positions if tensor is None else tensor).split(layer.lengths)


def _padded(rows: list[Tensor], fill: float, shape: tuple[int, int, int]) -> np.ndarray:
    wide = np.full((len(rows), max(map(len, rows))), fill, dtype=rows[0].numpy().dtype)
    for row, values in zip(wide, rows, strict=True):
        row[: len(values)] = values.numpy()
    return wide.reshape(*shape, -1)


def _differ(name: str, got: np.ndarray, expected: np.ndarray) -> str | None:
    if got.shape != expected.shape:
        return f"{name} has shape {list(got.shape)}, expected {list(expected.shape)}"
    where = np.argwhere(got != expected)
    return (
        f"{name} differ first at {where[0].tolist()}: {got[tuple(where[0])]}, expected {expected[tuple(where[0])]}"
        if len(where)
        else None
    )


def _off(case: Case, name: str, got: np.ndarray) -> tuple[float, str | None]:
    if got.shape != case.arrays[name].shape:
        return float("inf"), f"{name} has shape {list(got.shape)}, expected {list(case.arrays[name].shape)}"
    error = worst_error(got, case.arrays[name], case.spec, times=3)
    return error, None if error <= 1 else f"{name} are off by {error:.3g} x the tolerance"
