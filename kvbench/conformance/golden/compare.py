"""Running a case and comparing what came out with what it expects."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.kv_cache import POSITION, KVCache
from kvbench.conformance.golden.case import Case
from kvbench.conformance.golden.spec import MakeScore, cache_of, eviction_of
from kvbench.conformance.golden.steps import after_prompt, block_by_block, compare_cuts, last_cut
from kvbench.conformance.golden.tolerance import worst_error
from kvbench.eviction.evict import Decision, Eviction


@dataclass(frozen=True)
class Verdict:
    """What became of a case: `problem` is None when all matched, `error` the largest score error over tolerance."""

    name: str
    problem: str | None
    error: float


def check(case: Case, make_score: MakeScore) -> Verdict:
    """Run a case and compare scores, lengths and kept positions with the expected ones.

    Raises nothing: whatever goes wrong in between is the problem of this case and of no other.
    """
    name = str(case.spec.get("name", "unnamed"))
    try:
        eviction = eviction_of(case, make_score)
        error, problem = _block_by_block(case, eviction) if case.spec["kind"] == "blockwise" else _run(case, eviction)
    except ValueError as error:
        return Verdict(name, f"cannot be run: {error}", float("nan"))
    except Exception as error:
        return Verdict(name, f"cannot be run: {type(error).__name__}: {error}", float("nan"))
    return Verdict(name, problem, error)


def _run(case: Case, eviction: Eviction) -> tuple[float, str | None]:
    """The cut after the prompt, and those that follow it."""
    cache = cache_of(case, eviction)
    decision = eviction.decide(cache)
    smaller = eviction.cut(cache, decision)
    error, problem = _compare_scores(case, decision)
    problem = problem or _compare_kept(case, decision) or _compare_cache(case, decision, smaller)
    if problem is None and case.spec["kind"] == "decode":
        later, problem = compare_cuts(case, after_prompt(case, eviction, cache, decision, smaller))
        error = max(error, later)
    return error, problem


def _block_by_block(case: Case, eviction: Eviction) -> tuple[float, str | None]:
    cuts = block_by_block(case, eviction)
    error, problem = compare_cuts(case, cuts)
    last, missed = last_cut(case, cuts)
    return max(error, last), problem or missed


def _compare_scores(case: Case, decision: Decision) -> tuple[float, str | None]:
    """The largest |got - expected| over tolerance x max(|expected|, floor x largest of the head)."""
    expected = case.arrays["scores"]
    if decision.rankings is None:
        ranked = "" if np.isnan(expected).all() else "nothing was ranked, but scores are expected"
        return 0.0, ranked or None
    if np.isnan(expected).all() and all(kept.all() for kept in decision.kept):
        return 0.0, None  # an allocation kept everything after ranking it
    got = np.full_like(expected, np.nan)
    for layer, ranking in enumerate(decision.rankings):
        stop = ranking.first + ranking.scores.shape[1]
        if ranking.scores.shape[0] != expected.shape[1]:
            return float("inf"), f"{ranking.scores.shape[0]} stored heads, expected {expected.shape[1]}"
        got[layer, :, ranking.first : stop] = ranking.scores.double().numpy()
    ranked = ~np.isnan(expected)
    if not np.array_equal(~np.isnan(got), ranked):
        return float("inf"), "candidates are not the expected columns"
    worst = worst_error(got, expected, case.spec)
    return worst, None if worst <= 1 else f"scores are off by {worst:.3g} x the tolerance"


def _compare_kept(case: Case, decision: Decision) -> str | None:
    lengths, expected = decision.lengths.numpy(), case.arrays["kept"]
    if not np.array_equal(lengths, case.arrays["lengths"]):
        return f"lengths {lengths.tolist()}, expected {case.arrays['lengths'].tolist()}"
    for layer, kept in enumerate(decision.kept):
        if kept.sum(dim=1).tolist() != lengths[layer].tolist():
            return f"{kept.sum(dim=1).tolist()} pairs kept in layer {layer}, but lengths {lengths[layer].tolist()}"
        for head, row in enumerate(kept.numpy()):
            wrong = row != expected[layer, head]
            exchanged = row.sum() == expected[layer, head].sum()
            if wrong.any() and not (exchanged and _tied(case, layer, head, wrong)):
                return f"kept positions differ in layer {layer}, head {head}: {np.flatnonzero(wrong).tolist()}"
    pairs = int(sum(kept.sum() for kept in decision.kept))
    return None if pairs == case.spec["total_pairs"] else f"{pairs} pairs, expected {case.spec['total_pairs']}"


def _tied(case: Case, layer: int, head: int, wrong: np.ndarray) -> bool:
    """Whether the expected scores of the positions in question agree within the tie tolerance."""
    scores = case.arrays["scores"][layer, head][wrong]
    tolerance = case.spec["tie_tolerance"] * np.abs(scores).max(initial=0)
    return not np.isnan(scores).any() and bool(np.ptp(scores) <= tolerance)


def _compare_cache(case: Case, decision: Decision, cache: KVCache) -> str | None:
    """The compacted cache must hold exactly the pairs that were decided, oldest first, with their keys and values."""
    keys, values = (torch.from_numpy(case.arrays[name]) for name in ("key", "value"))
    for layer, kept in zip(cache.layers, decision.kept, strict=True):
        pairs = (layer.positions, layer.keys, layer.values)
        wanted = (
            kept.nonzero()[:, 1].to(POSITION),
            _chosen(keys[layer.index], kept),
            _chosen(values[layer.index], kept),
        )
        if not all(torch.equal(got, want) for got, want in zip(pairs, wanted, strict=True)):
            return f"the compacted cache of layer {layer.index} does not hold the kept positions"
    return None


def _chosen(pairs: Tensor, kept: Tensor) -> Tensor:
    """The kept rows of dense [kv_heads, tokens, head_dim] pairs, as stored: head by head."""
    return pairs.repeat_interleave(kept.shape[0] // pairs.shape[0], dim=0)[kept]
