"""Made-up cases of every combination of the spec's fields, against the contract written down a second time."""

import random
from typing import Any

import numpy as np
import pytest

from kvbench.extras.conformance.golden import Case, check
from kvbench.extras.conformance.tests.naive_budgets import expected

SCORES: list[dict[str, Any]] = [
    *({"name": name, "params": {}} for name in ("attn", "attn_max", "recency", "key_norm", "key_diff")),
    *({"name": f"obcache_{part}", "params": {}} for part in ("value", "key", "joint")),
    *({"name": name, "params": {}} for name in ("exact_removal", "exact_zeroed")),
    {"name": "cake", "params": {"gamma": 50.0}},
    *({"name": "vatp", "params": {"norm": n, "weight": w}} for n in (1, 2) for w in ("after_pool", "before_pool")),
    *({"name": "lava", "params": {"norm": n}} for n in (1, 2)),
    *({"name": name, "params": {"squared": s}} for name in ("caote", "fastcaote") for s in (False, True)),
]
ALIKE = ("attn", "attn_max", "cake", "obcache_value", "obcache_key", "obcache_joint", "exact_removal", "exact_zeroed")
"""Scores that a mean over the layer makes the same in every head: nothing weighs them by head after it."""
HEADS: list[dict[str, Any]] = [
    {"kind": "uniform"},
    {"kind": "flat"},
    *({"kind": kind, "alpha": alpha} for kind in ("mix", "safeguard") for alpha in (0.2, 0.5, 0.85)),
]
LAYERS: list[dict[str, Any]] = [
    {"kind": "uniform"},
    {"kind": "entropy"},
    {"kind": "global"},
    *({"kind": "pyramid", "beta": beta} for beta in (5, 13, 20)),
    *({"kind": "preference", "tau1": tau1, "tau2": tau2} for tau1, tau2 in ((1.0, 1.0), (1.6, 0.4), (0.4, 0.8))),
]


def made_up(seed: int) -> Case:
    """A case drawn from `seed`; inputs are rounded as those of the golden cases are."""
    draw, generator = random.Random(seed), np.random.default_rng(seed)
    kv, group = draw.choice([(2, 4), (4, 1), (3, 2), (1, 5)])
    layers, tokens = draw.randint(2, 4), draw.randint(40, 120)
    score = draw.choice(SCORES)
    sink, recent = draw.choice([0, 0, 4]), draw.choice([0, 7, 16])
    reduction = draw.choice(["mean", "max", "sum", "none", "layer_mean"])
    least = 2 if score["name"] in ("cake", "lava") else 1
    spec: dict[str, Any] = {
        "name": f"made up {seed}",
        "kind": "prefill",
        "shape": {"layers": layers, "query_heads": kv * group, "kv_heads": kv, "tokens": tokens, "head_dim": 8},
        "score": score,
        "window": draw.choice([max(least, 1), 5, 16, 32]),
        "reduce": draw.choice(["sum", "mean", "max"]),
        "pool": draw.choice([None, {"kind": "max", "size": 7}, {"kind": "avg", "size": 5}, {"kind": "max", "size": 3}]),
        "group": reduction,
        "order": draw.choice([["pool", "group"], ["group", "pool"]]),
        "sink": sink,
        "recent": recent,
        "heads": draw.choice(HEADS),
        "layers": draw.choice(LAYERS),
        "budget_tokens": draw.randint(sink + recent + 1, tokens - 1),
        "variant": draw.choice(["paper", "official"]),
        "score_tolerance": 3e-5,
        "score_floor": 0.1 if score["name"].startswith("key_") else 1e-3,
        "tie_tolerance": 1e-5,
    }
    if not score["name"].startswith("exact_") and draw.random() < 0.2:
        spec["window"] = "all"  # without what a row that sees one token alone would lose with it
    elif spec["layers"]["kind"] == "preference":
        spec["window"] = max(2, spec["window"])
    if reduction == "layer_mean" and score["name"] in ALIKE and draw.random() < 0.5:
        spec["heads"] = {"kind": "shared"}
    if score["name"].startswith("key_") and spec["layers"]["kind"] == "entropy":
        spec["layers"] = {"kind": "uniform"}
    sizes = [(layers, heads, tokens, 8) for heads in (kv * group, kv, kv)]
    arrays = dict(zip(("query", "key", "value"), (generator.normal(size=size) for size in sizes), strict=True))
    arrays["query"] *= 1.5
    arrays["value"] *= generator.lognormal(sigma=0.5, size=(layers, kv, tokens, 1))
    rounded = {name: array.astype(np.float16).astype(np.float32) for name, array in arrays.items()}
    return judged(Case(spec, rounded))


def judged(case: Case) -> Case:
    """The same case, with what it must produce by the second writing."""
    scores, lengths, kept = expected(case.spec, *(case.arrays[name] for name in ("query", "key", "value")))
    case.arrays.update(scores=scores, lengths=lengths, kept=kept)
    case.spec["total_pairs"] = int(lengths.sum())
    return case


@pytest.mark.parametrize("seed", range(240))
def test_a_made_up_case_matches(seed: int) -> None:
    verdict = check(made_up(seed))
    assert verdict.problem is None
