"""Golden cases: complete eviction problems with the numbers they must produce, through the same `Eviction` as a run.

A case is one `.npz` file: a policy as data (`spec`), queries, keys and values after RoPE, and the expected scores, head
lengths and kept positions. Whatever of a spec kvbench cannot do is a reason to fail, never a reason to skip.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvbench.attention import causal, observe
from kvbench.budget import Tokens
from kvbench.cache import KVCache, from_dense
from kvbench.eviction import Decision, Eviction
from kvbench.policy import Policy
from kvbench.scores.score import Score
from kvbench.shaping import Pool

MakeScore = Callable[[str, Mapping[str, Any]], Score]
"""A score by name and parameters; raises ValueError for one that does not exist."""


@dataclass(frozen=True)
class Case:
    """The arrays of a file and its spec."""

    spec: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def shape(self) -> dict[str, int]:
        """layers, query_heads, kv_heads, tokens, head_dim."""
        return self.spec["shape"]


@dataclass(frozen=True)
class Verdict:
    """What became of a case: `problem` is None when all matched, `error` the largest score error over tolerance."""

    name: str
    problem: str | None
    error: float


def load(path: Path) -> Case:
    """Read a case. Raises ValueError for a file that is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return Case(json.loads(str(arrays.pop("spec"))), arrays)
    except (OSError, KeyError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is no golden case: {error}") from error


def check(case: Case, make_score: MakeScore) -> Verdict:
    """Run a case and compare scores, lengths and kept positions with the expected ones."""
    name = str(case.spec.get("name", "unnamed"))
    try:
        eviction = eviction_of(case, make_score)
        cache = cache_of(case, eviction)
        decision = eviction.decide(cache)
        smaller = eviction.cut(cache, decision)
    except ValueError as error:
        return Verdict(name, f"cannot be run: {error}", float("nan"))
    error, problem = _compare_scores(case, decision)
    problem = problem or _compare_kept(case, decision) or _compare_cache(decision, smaller)
    return Verdict(name, problem, error)


def eviction_of(case: Case, make_score: MakeScore) -> Eviction:
    """The policy, score and budget that a spec describes. Raises ValueError, naming the field, for what is unknown."""
    spec = case.spec
    for field, legal in (("kind", ("prefill",)), ("variant", ("paper", "official"))):
        _require(field, spec[field], legal)
    _require("heads", spec["heads"]["kind"], ("uniform",))
    _require("layers", spec["layers"]["kind"], ("uniform",))
    _require("group", spec["group"], ("mean", "max", "sum", "none"))
    _require("reduce", spec["reduce"], ("sum", "mean", "max"))
    if not isinstance(spec["window"], int):
        raise ValueError(f"window {spec['window']!r} is not supported; legal: a number of rows")
    score = make_score(spec["score"]["name"], spec["score"]["params"])
    apart = spec["group"] == "none" and score.evidence.window
    pool = spec["pool"]
    policy = Policy(
        name=spec["name"],
        window=spec["window"],
        reduce=spec["reduce"],
        pool=Pool(**pool) if pool else None,
        group=None if spec["group"] == "none" and not apart else spec["group"],
        order=tuple(spec["order"]),
        sink=spec["sink"],
        recent=spec["recent"],
        variant=spec["variant"],
        layout="query_heads" if apart else "kv_heads",
    )
    return Eviction(policy, score, Tokens(spec["budget_tokens"]))


def cache_of(case: Case, eviction: Eviction) -> KVCache:
    """The cache a model would hand over: every token, and the voting rows as evidence."""
    queries, keys, values = (torch.from_numpy(case.arrays[name]) for name in ("query", "key", "value"))
    rows = min(eviction.policy.window, keys.shape[2])
    layers = [_layer(index, *layer, rows=rows) for index, layer in enumerate(zip(queries, keys, values, strict=True))]
    return KVCache(tuple(layers), keys.shape[2])


def _layer(index: int, queries: Tensor, keys: Tensor, values: Tensor, rows: int) -> Any:
    scaling = keys.shape[-1] ** -0.5
    voting = queries[:, -rows:]
    window = observe(voting, causal(voting, keys, values, scaling), keys, scaling)
    return from_dense(index, queries.shape[0], keys, values, window)


def _require(field: str, value: Any, legal: tuple[Any, ...]) -> None:
    if value not in legal:
        raise ValueError(f"{field} {value!r} is not supported; legal: {', '.join(legal)}")


def _compare_scores(case: Case, decision: Decision) -> tuple[float, str | None]:
    """The largest |got - expected| over tolerance x max(|expected|, floor x largest of the head)."""
    expected = case.arrays["scores"]
    if decision.rankings is None:
        ranked = "" if np.isnan(expected).all() else "nothing was ranked, but scores are expected"
        return 0.0, ranked or None
    got = np.full_like(expected, np.nan)
    for layer, ranking in enumerate(decision.rankings):
        stop = ranking.first + ranking.scores.shape[1]
        if ranking.scores.shape[0] != expected.shape[1]:
            return float("inf"), f"{ranking.scores.shape[0]} stored heads, expected {expected.shape[1]}"
        got[layer, :, ranking.first : stop] = ranking.scores.double().numpy()
    if not np.array_equal(np.isnan(got), np.isnan(expected)):
        return float("inf"), "candidates are not the expected columns"
    size = np.abs(expected)
    floor = case.spec["score_floor"] * np.nanmax(size, axis=2, keepdims=True, initial=0, where=~np.isnan(size))
    allowed = case.spec["score_tolerance"] * np.fmax(size, floor)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.where(got == expected, 0, np.abs(got - expected) / allowed)
    worst = float(np.nanmax(excess, initial=0))
    return worst, f"scores are off by {worst:.3g} x the tolerance" if worst > 1 else None


def _compare_kept(case: Case, decision: Decision) -> str | None:
    lengths, expected = decision.lengths.numpy(), case.arrays["kept"]
    if not np.array_equal(lengths, case.arrays["lengths"]):
        return f"lengths {lengths.tolist()}, expected {case.arrays['lengths'].tolist()}"
    for layer, kept in enumerate(decision.kept):
        for head, row in enumerate(kept.numpy()):
            wrong = row != expected[layer, head]
            exchanged = row.sum() == expected[layer, head].sum()
            if wrong.any() and not (exchanged and _tied(case, layer, head, wrong)):
                return f"kept positions differ in layer {layer}, head {head}: {np.flatnonzero(wrong).tolist()}"
    return None


def _tied(case: Case, layer: int, head: int, wrong: np.ndarray) -> bool:
    """Whether the expected scores of the positions in question agree within the tie tolerance."""
    scores = case.arrays["scores"][layer, head][wrong]
    tolerance = case.spec["tie_tolerance"] * np.abs(scores).max(initial=0)
    return not np.isnan(scores).any() and bool(np.ptp(scores) <= tolerance)


def _compare_cache(decision: Decision, cache: KVCache) -> str | None:
    """The compacted cache must hold exactly the pairs that were decided, oldest first."""
    for layer, kept in zip(cache.layers, decision.kept, strict=True):
        if not torch.equal(layer.positions, kept.nonzero()[:, 1]):
            return f"the compacted cache of layer {layer.index} does not hold the kept positions"
    return None
