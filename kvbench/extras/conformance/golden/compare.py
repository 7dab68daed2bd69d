"""Running a golden case and comparing the result with the expected arrays.

A case of kind `prefill` has one eviction. Those of kind `decode` and `blockwise` have one after every generated token
or every block of the prompt; each uses the step of a real run and is compared separately.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kvbench.cache.attention import AttentionParams, attend_layer
from kvbench.cache.kv_cache import POSITION, KVCache, LayerCache
from kvbench.eviction.evict import Decision, Eviction
from kvbench.eviction.incremental import ACCUMULATED, IncrementalEviction, LayerEviction, capacity_after
from kvbench.extras.conformance.golden.case import AXES, Case, cache_of, eviction_of, schedule_of
from kvbench.extras.conformance.golden.verdict import Verdict

Steps = list[tuple[LayerEviction, ...]]
"""Every eviction in order, layer by layer."""
Comparison = tuple[float, str | None]
"""The largest error of a score over its tolerance, and the first problem."""


def check(case: Case) -> Verdict:
    """Run a case and compare scores, lengths and kept positions with the expected ones.

    Raises nothing: whatever goes wrong is the problem of this case and of no other.
    """
    name = str(case.spec.get("name", "unnamed"))
    try:
        eviction = eviction_of(case)
        if case.spec["kind"] == "blockwise":
            steps = _steps_by_block(case, eviction)
            error, problem = compare_steps(case, steps)
            last_error, last_problem = _compare_last_step(case, steps)
            error, problem = max(error, last_error), problem or last_problem
        else:
            error, problem = _check_prompt(case, eviction)
    except ValueError as error:
        return Verdict(name, f"cannot be run: {error}")
    except Exception as error:
        return Verdict(name, f"cannot be run: {type(error).__name__}: {error}")
    return Verdict(name, problem, f"score error {error:.2f} x tolerance", error=error)


def _check_prompt(case: Case, eviction: Eviction) -> Comparison:
    """Return the eviction after the prompt, and those while decoding."""
    cache = cache_of(case, eviction)
    decision = eviction.decide(cache)
    smaller = eviction.evict(cache, decision)
    error, problem = _compare_decision(case, decision)
    problem = problem or _compare_kept(case, decision) or _compare_cache(case, decision, smaller)
    if problem is None and case.spec["kind"] == "decode":
        later, problem = compare_steps(case, steps_after_prompt(case, eviction, cache, decision, smaller))
        error = max(error, later)
    return error, problem


def _compare_decision(case: Case, decision: Decision) -> Comparison:
    """Return the scores of the candidates."""
    expected = case.arrays["scores"]
    if decision.rankings is None:
        return 0.0, None if np.isnan(expected).all() else "nothing was ranked, but scores are expected"
    if np.isnan(expected).all() and all(kept.all() for kept in decision.kept):
        return 0.0, None  # an allocation kept everything after ranking it
    actual = np.full_like(expected, np.nan)
    for layer, ranking in enumerate(decision.rankings):
        stop = ranking.first + ranking.scores.shape[1]
        if ranking.scores.shape[0] != expected.shape[1]:
            return float("inf"), f"{ranking.scores.shape[0]} cache heads, expected {expected.shape[1]}"
        actual[layer, :, ranking.first : stop] = ranking.scores.double().numpy()
    if not np.array_equal(np.isnan(actual), np.isnan(expected)):
        return float("inf"), "candidates are not the expected columns"
    return _compare_scores("scores", actual, case)


def _compare_scores(name: str, actual: np.ndarray, case: Case, times: int = 1) -> Comparison:
    """Return the largest |actual - expected| over `times` x tolerance x max(|expected|, floor x the largest of the
    head).

    The last axis runs along a head. Entries expected as NaN are skipped; NaN elsewhere counts as infinitely far.
    """
    expected = case.arrays[name]
    if actual.shape != expected.shape:
        return float("inf"), f"{name} has shape {list(actual.shape)}, expected {list(expected.shape)}"
    ranked, size = ~np.isnan(expected), np.abs(expected)
    floor = case.spec["score_floor"] * np.max(size, axis=-1, keepdims=True, initial=0, where=ranked)
    allowed = times * case.spec["score_tolerance"] * np.fmax(size, floor)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.where(actual == expected, 0, np.abs(actual - expected) / allowed)
    excess[ranked & np.isnan(excess)] = np.inf
    error = float(np.max(excess, initial=0, where=ranked))
    return error, None if error <= 1 else f"{name} are off by {error:.3g} x the tolerance"


def _compare_exactly(name: str, actual: np.ndarray, case: Case) -> str | None:
    expected = case.arrays[name]
    if actual.shape != expected.shape:
        return f"{name} has shape {list(actual.shape)}, expected {list(expected.shape)}"
    for place in map(tuple, np.argwhere(actual != expected).tolist()):
        return f"{name} differ first at {list(place)}: {actual[place]}, expected {expected[place]}"
    return None


def _compare_kept(case: Case, decision: Decision) -> str | None:
    lengths, expected = decision.lengths.numpy(), case.arrays["kept"]
    if not np.array_equal(lengths, case.arrays["lengths"]):
        return f"lengths {lengths.tolist()}, expected {case.arrays['lengths'].tolist()}"
    for layer, kept in enumerate(decision.kept):
        if kept.sum(dim=1).tolist() != lengths[layer].tolist():
            return f"{kept.sum(dim=1).tolist()} pairs kept in layer {layer}, but lengths {lengths[layer].tolist()}"
        for head, row in enumerate(kept.numpy()):
            differs = row != expected[layer, head]
            if not differs.any():
                continue
            scores = case.arrays["scores"][layer, head][differs]
            are_tied = np.ptp(scores) <= case.spec["tie_tolerance"] * np.abs(scores).max()  # never for NaN
            if not are_tied or row.sum() != expected[layer, head].sum():
                return f"kept positions differ in layer {layer}, head {head}: {np.flatnonzero(differs).tolist()}"
    return None


def _compare_cache(case: Case, decision: Decision, cache: KVCache) -> str | None:
    """Return the compacted cache must hold exactly the kept pairs, oldest first, with their keys and values."""
    dense = [torch.from_numpy(case.arrays[name]) for name in ("key", "value")]
    for layer, kept in zip(cache.layers, decision.kept, strict=True):
        keys, values = (part[layer.index].repeat_interleave(len(kept) // len(part[0]), dim=0)[kept] for part in dense)
        expected = (kept.nonzero()[:, 1].to(POSITION), keys, values)
        actual = (layer.positions, layer.keys, layer.values)
        if not all(torch.equal(*tensors) for tensors in zip(actual, expected, strict=True)):
            return f"the compacted cache of layer {layer.index} does not hold the kept positions"
    return None


def steps_after_prompt(case: Case, eviction: Eviction, cache: KVCache, decision: Decision, smaller: KVCache) -> Steps:
    """Return the evictions that follow the prompt's, one after every generated token."""
    incremental = IncrementalEviction(eviction, capacity_after(eviction, cache, decision), decoding=True)
    remembered = incremental.remember(cache, decision, smaller)
    incremental = incremental.with_answer_budget(remembered, schedule_of(case).get("answer_budget"))
    layers = remembered.layers
    tokens = zip(*(torch.from_numpy(case.arrays[f"{name}_step"]) for name in ("query", "key", "value")), strict=True)
    return list(_run_steps(incremental, layers, cache.num_tokens, tokens))


def _steps_by_block(case: Case, eviction: Eviction) -> Steps:
    """Return the evictions after every block of the prompt, starting from an empty cache."""
    layers, query_heads, kv_heads, tokens, head_dim = (case.shape[axis] for axis in AXES)
    incremental = IncrementalEviction(eviction, eviction.pairs(tokens))
    arrays = (torch.from_numpy(case.arrays[name]) for name in ("query", "key", "value"))
    blocks = zip(*(array.split(schedule_of(case)["block"], dim=2) for array in arrays), strict=True)
    empty = [incremental.start(index, query_heads, kv_heads, torch.empty(head_dim)) for index in range(layers)]
    return list(_run_steps(incremental, empty, 0, blocks))


def _run_steps(
    incremental: IncrementalEviction,
    layers: Sequence[LayerCache],
    num_tokens: int,
    blocks: Iterator[tuple[Tensor, Tensor, Tensor]],
) -> Iterator[tuple[LayerEviction, ...]]:
    """Read queries, keys and values [layers, heads, new, head_dim], evict, and go on with what is left."""
    for queries, keys, values in blocks:
        grown = [layer.append(k, v, num_tokens) for layer, k, v in zip(layers, keys, values, strict=True)]
        rule = AttentionParams(keys.shape[-1] ** -0.5)
        rows = [attend_layer(query, layer, rule) for layer, query in zip(grown, queries, strict=True)]
        steps = tuple(incremental.step(layer, window) for layer, window in zip(grown, rows, strict=True))
        yield steps
        layers, num_tokens = [step.layer for step in steps], num_tokens + keys.shape[2]


def slot_scores(step: LayerEviction) -> tuple[Float[Tensor, "_"], ...]:
    """Return the scores of the slots of each cache head before an eviction.

    They are NaN for protected slots, and for slots of a prompt that stays, which are not ranked.
    """
    ranking, lengths = step.ranking, step.before.lengths
    scores = ranking.scores.new_full((len(lengths), max(lengths)), torch.nan)
    ranked = ranking.scores.masked_fill(ranking.scores.isposinf(), torch.nan)
    scores[:, ranking.first : ranking.first + ranking.candidates] = ranked
    return tuple(row[:length] for row, length in zip(scores, lengths, strict=True))


def compare_steps(case: Case, steps: Steps) -> Comparison:
    """Return every array of every eviction, in the order of positions and padded like the expected ones."""
    kept, scores, sums = [], [], []
    for step in (step for layers in steps for step in layers):
        layer = step.layer
        total = layer.state.get(ACCUMULATED, torch.full_like(layer.positions, torch.nan, dtype=torch.float))
        heads = (layer.positions.split(layer.lengths), total.split(layer.lengths))
        for positions, running in zip(*heads, strict=True):
            kept.append(positions.sort().values)
            sums.append(running[positions.argsort()].double())
        for positions, raw in zip(step.before.positions.split(step.before.lengths), slot_scores(step), strict=True):
            scores.append(raw[positions.argsort()].double())
    shape = (len(steps), len(steps[0]), steps[0][0].layer.cache_heads)
    problem = _compare_exactly("step_lengths", np.array([len(row) for row in kept]).reshape(shape), case)
    problem = problem or _compare_exactly("kept_positions", _padded(kept, -1, shape), case)
    if problem:
        return float("inf"), problem
    worst, problem = _compare_scores("step_scores", _padded(scores, np.nan, shape), case, times=3)
    if problem is None and "accumulator" in case.arrays:
        error, problem = _compare_scores("accumulator", _padded(sums, np.nan, shape), case, times=3)
        worst = error if problem else max(worst, error)
    return worst, problem


def _compare_last_step(case: Case, steps: Steps) -> Comparison:
    """Return a block-wise case expects the last eviction by position: its scores, the lengths and what is kept."""
    shape = case.arrays["scores"].shape
    scores, kept = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for layer, step in enumerate(steps[-1]):
        before = step.before.positions.split(step.before.lengths)
        for head, positions in enumerate(step.layer.positions.split(step.layer.lengths)):
            kept[layer, head, positions.numpy()] = True
            scores[layer, head, before[head].numpy()] = slot_scores(step)[head].double().numpy()
    error, problem = _compare_scores("scores", scores, case)
    kept_problem = _compare_exactly("kept", kept, case) or _compare_exactly("lengths", kept.sum(axis=2), case)
    return error, kept_problem or problem


def _padded(rows: list[Tensor], fill: float, shape: tuple[int, int, int]) -> np.ndarray:
    return pad_sequence(rows, batch_first=True, padding_value=fill).view(*shape, -1).numpy()
