"""Made-up cases with schedules or repetitions, in every combination of the spec's fields that the contract defines."""

import random
from typing import Any

import numpy as np

from kvbench.extras.conformance.golden import Case
from kvbench.extras.conformance.tests.naive import Array
from kvbench.extras.conformance.tests.naive_repeat import repeated
from kvbench.extras.conformance.tests.naive_steps import ALONE, by_blocks, decoded

PARAMS: dict[str, list[dict[str, Any]]] = {
    "cake": [{"gamma": 50.0}, {"gamma": 200.0}],
    "vatp": [{"norm": n, "weight": w} for n in (1, 2) for w in ("after_pool", "before_pool")],
    "lava": [{"norm": 1}, {"norm": 2}],
    "caote": [{"squared": False}, {"squared": True}],
    "fastcaote": [{"squared": False}, {"squared": True}],
}
VOTED = ("attn", "attn_max", "vatp", "lava", "obcache_value", "obcache_key", "obcache_joint", "exact_removal")
VOTED += ("exact_zeroed", "caote", "fastcaote")
ALIKE = ("attn", "attn_max", "obcache_value", "obcache_key", "obcache_joint")
"""Scores that a mean over the layer makes the same in every head."""
POOLS = [None, None, {"kind": "max", "size": 7}, {"kind": "avg", "size": 5}, {"kind": "max", "size": 3}]


def decode(seed: int) -> Case:
    """A prompt and tokens after it; sometimes the prompt is shorter than the budget."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    spec = _spec(draw, "decode", draw.choice([*VOTED, *ALONE, "cake", "cake"]))
    protected, tokens = spec["sink"] + spec["recent"], spec["shape"]["tokens"]
    spec["budget_tokens"] = draw.randint(protected + 1, tokens - 1)
    if draw.random() < 0.2:
        spec["budget_tokens"] = tokens + draw.randint(0, 5)
    spec["schedule"] |= {"steps": draw.randint(1, 9)}
    if spec["score"]["name"] == "cake":
        tau1, tau2 = draw.choice([(1.0, 1.0), (1.6, 0.4)])
        uniform, preference = {"kind": "uniform"}, {"kind": "preference", "tau1": tau1, "tau2": tau2}
        spec |= {"layers": draw.choice([uniform, preference, preference]), "reduce": "mean", "group": "mean"}
        spec |= {
            "order": ["pool", "group"],
            "pool": draw.choice([{"kind": "avg", "size": 5}, {"kind": "avg", "size": 3}]),
        }
        spec["schedule"] = {"steps": 9, "state": "overwrite", "slot_order": draw.choice(["position", "score"])}
        spec["window"] = draw.choice([2, 5, 16, 32])
    if draw.random() < 0.3:
        spec["schedule"]["answer_budget"] = spec["recent"] + draw.randint(1, 4)
    arrays = _arrays(spec, numbers)
    shape = spec["shape"]
    for name, heads in (("query", "query_heads"), ("key", "kv_heads"), ("value", "kv_heads")):
        size = (spec["schedule"]["steps"], shape["layers"], shape[heads], 1, shape["head_dim"])
        arrays[f"{name}_step"] = _rounded(numbers.normal(size=size) * 1.5)
    return _judged(spec, arrays, decoded(spec, arrays))


def blockwise(seed: int) -> Case:
    """A prompt in blocks, the last of which may be ragged."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    spec = _spec(draw, "blockwise", draw.choice([*VOTED, *ALONE]))
    protected, tokens = spec["sink"] + spec["recent"], spec["shape"]["tokens"]
    spec["budget_tokens"] = draw.randint(protected + 1, tokens - 1)
    spec["schedule"] |= {"block": draw.choice([3, 8, 16, 33])}
    if spec["score"]["name"].startswith("exact_"):
        spec["window"] = 2  # without what a row that sees one token alone would lose with it
    arrays = _arrays(spec, numbers)
    return _judged(spec, arrays, by_blocks(spec, arrays))


def repeat(seed: int) -> Case:
    """A context in chunks behind a prefix, each repeated by rows of its own."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    spec = _spec(draw, "prefill", "attn_max")
    tokens, prefix = spec["shape"]["tokens"], draw.choice([0, 1, 5])
    chunk, head = draw.choice([9, 20, 64]), draw.randint(0, 6)
    chunks = [[start, min(start + chunk, tokens)] for start in range(prefix, tokens, chunk)]
    stops = np.cumsum([stop - start + head for start, stop in chunks]).tolist()
    rows = [[start, stop] for start, stop in zip([0, *stops], stops, strict=False)]
    params = {"probe": "repeat", "prefix": prefix, "chunks": chunks, "rows": rows}
    del spec["schedule"]
    spec |= {"score": {"name": "attn_max", "params": params}, "window": "all", "reduce": "max", "sink": prefix}
    spec |= {"recent": draw.choice([0, 0, 3]), "pool": draw.choice(POOLS) if prefix == 0 else None}
    kinds = [{"kind": kind} for kind in ("uniform", "flat")] + [{"kind": "mix", "alpha": 0.3}]
    spec["heads"] = draw.choice([*kinds, {"kind": "safeguard", "alpha": 0.5}])
    layers = [{"kind": kind} for kind in ("uniform", "entropy", "global", "global")]
    spec["layers"] = draw.choice([*layers, *([{"kind": "pyramid", "beta": 13}] if spec["shape"]["layers"] > 1 else [])])
    spec["budget_tokens"] = draw.randint(spec["sink"] + spec["recent"] + 1, tokens - 1)
    arrays, shape = _arrays(spec, numbers), spec["shape"]
    for name, heads in (("query_repeat", "query_heads"), ("key_repeat", "kv_heads")):
        size = (shape["layers"], shape[heads], stops[-1], shape["head_dim"])
        arrays[name] = _rounded(numbers.normal(size=size) * 1.5)
    return _judged(spec, arrays, repeated(spec, arrays))


def _spec(draw: random.Random, kind: str, score: str) -> dict[str, Any]:
    kv, group = draw.choice([(2, 4), (4, 1), (3, 2), (1, 5), (2, 7)])
    group_of = draw.choice(["mean", "max", "sum", "none", *(["layer_mean"] if score in ALIKE else [])])
    states = ["none", "overwrite"] if score in ALONE else ["accumulate", "accumulate", "overwrite"]
    shape = {"layers": draw.randint(1, 3), "query_heads": kv * group, "kv_heads": kv}
    shape |= {"tokens": draw.randint(14, 90), "head_dim": draw.choice([4, 8, 16])}
    sink = draw.choice([0, 0, 1, 4])
    return {
        "name": f"made up {kind} {score}",
        "kind": kind,
        "shape": shape,
        "score": {"name": score, "params": draw.choice(PARAMS.get(score, [{}]))},
        "window": draw.choice([1, 2, 7, 16, *(["all"] if not score.startswith("exact_") else [])]),
        "reduce": draw.choice(["sum", "mean", "max"]),
        "pool": draw.choice(POOLS),
        "group": group_of,
        "order": draw.choice([["pool", "group"], ["group", "pool"]]),
        "sink": sink,
        "recent": draw.choice([0, 0, 3, 7]),
        "heads": draw.choice([{"kind": "uniform"}, {"kind": "shared" if group_of == "layer_mean" else "uniform"}]),
        "layers": {"kind": "uniform"},
        "variant": draw.choice(["paper", "official"]),
        "schedule": {"state": draw.choice(states)},
    } | _tolerances(score)


def _tolerances(score: str) -> dict[str, float]:
    """Float32 leaves fewer digits of two quantities than of the others.

    1 - a of a row that attends to few slots is a difference of nearly equal numbers: a larger tolerance. Signed scores
    of keys cross zero, where products of both signs cancel and leave the absolute error of a float32 sum (about 1e-7
    in a cosine): the floor is 0.1, that of the golden cases for these scores (README of the cases, section 7).
    """
    return {
        "score_tolerance": 3e-4 if score.startswith("exact_") else 3e-5,
        "score_floor": 0.1 if score.startswith("key_") else 1e-2,
        "tie_tolerance": 1e-5,
    }


def _arrays(spec: dict[str, Any], numbers: np.random.Generator) -> dict[str, Array]:
    layers, query_heads, kv_heads, tokens, head_dim = spec["shape"].values()
    query = 1.5 * numbers.normal(size=(layers, query_heads, tokens, head_dim))
    key = numbers.normal(size=(layers, kv_heads, tokens, head_dim))
    value = numbers.normal(size=key.shape) * numbers.lognormal(sigma=0.5, size=(layers, kv_heads, tokens, 1))
    return {"query": _rounded(query), "key": _rounded(key), "value": _rounded(value)}


def _rounded(array: Array) -> Array:
    return array.astype(np.float16).astype(np.float32)


def _judged(spec: dict[str, Any], arrays: dict[str, Array], expected: dict[str, Array]) -> Case:
    spec["total_pairs"] = int(expected["lengths"].sum())
    return Case(spec, arrays | expected)
