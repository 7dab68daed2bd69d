"""The contract of the golden cases written down a second time, in float64 and without anything of kvbench.

Slow and plain on purpose: one list at a time, Python's own sort with every rule of the order in its key.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray


def rows_of(spec: dict[str, Any], q: Array, k: Array, v: Array) -> tuple[Array, Array, Array, Array]:
    """A and Z [heads, rows, tokens], o [heads, rows, dim] and log-sum-exp [heads, rows] of a layer's observed rows."""
    heads, tokens, dim = q.shape
    rows = tokens if spec["window"] == "all" else min(spec["window"], tokens)
    wide_k, wide_v = (np.repeat(part, heads // len(part), axis=0) for part in (k, v))
    z = q[:, -rows:] @ wide_k.transpose(0, 2, 1) / dim**0.5
    seen = np.tril(np.ones((tokens, tokens), bool))[-rows:]
    e = np.where(seen, np.exp(z - z.max(-1, keepdims=True)), 0)
    a = e / e.sum(-1, keepdims=True)
    lse = np.log(e.sum(-1)) + z.max(-1)
    return a, np.where(seen, z, 0), a @ wide_v, lse


def raw_scores(spec: dict[str, Any], q: Array, k: Array, v: Array) -> Array:
    """Scores before shaping, one row a query head or, for keys alone, a KV head."""
    name = spec["score"]["name"]
    if name == "recency":
        return np.tile(np.arange(k.shape[1], dtype=float), (len(k), 1))
    if name == "key_norm":
        return -np.linalg.norm(k, axis=-1)
    if name == "key_diff":
        mean = (k / np.linalg.norm(k, axis=-1, keepdims=True)).mean(1, keepdims=True)
        return -(k * mean).sum(-1) / np.linalg.norm(k, axis=-1) / np.linalg.norm(mean, axis=-1)
    wide = np.repeat(v, len(q) // len(v), axis=0)
    return signals(spec, wide, *rows_of(spec, q, k, v))


def signals(spec: dict[str, Any], wide: Array, a: Array, z: Array, o: Array, lse: Array) -> Array:
    """Scores of every column by the rows that vote; `wide` are the values, one row a query head."""
    name, params = spec["score"]["name"], spec["score"]["params"]
    if name == "cake":
        return a.mean(1) + params["gamma"] * a.var(1, ddof=1)
    if name in ("attn", "vatp", "lava", "caote", "fastcaote"):
        return {"sum": a.sum(1), "mean": a.mean(1), "max": a.max(1)}[spec["reduce"]]
    if name == "attn_max":
        return a.max(1)
    wide = wide[:, None]  # heads, 1, tokens, dim
    off = wide - o[:, :, None]
    terms: dict[str, Callable[[], Array]] = {
        "obcache_value": lambda: a**2 * (wide**2).sum(-1),
        "obcache_key": lambda: (a * z) ** 2 * (off**2).sum(-1),
        "obcache_joint": lambda: a**2 * ((wide + z[..., None] * off) ** 2).sum(-1),
        "exact_removal": lambda: (a / (1 - a)) ** 2 * (off**2).sum(-1),
        "exact_zeroed": lambda: np.where(a > 0, _zeroed(a, o, wide, lse), 0),
    }
    return terms[name]().sum(1)


def _zeroed(a: Array, o: Array, wide: Array, lse: Array) -> Array:
    e = np.exp(-lse)[:, :, None, None]
    after = (o[:, :, None] - a[..., None] * wide) / (1 - a[..., None] + e)
    return ((after - o[:, :, None]) ** 2).sum(-1)


def shaped(spec: dict[str, Any], raw: Array, v: Array, pooled: bool) -> Array:
    """The final score of the candidates, one row a stored head."""
    name, params, (kv, tokens, _) = spec["score"]["name"], spec["score"]["params"], v.shape
    stop = tokens - spec["recent"]
    scores = raw if name in ("caote", "fastcaote") else raw[:, :stop]
    for step in spec["order"]:
        if step == "group":
            scores = _group(scores, spec["group"], kv)
            continue
        weight = np.ones((kv, scores.shape[1]))
        if name == "vatp":
            weight = np.linalg.norm(v[:, :stop], ord=params["norm"], axis=-1)
        if name == "lava":
            weight = weight * np.linalg.norm(v[:, :stop], ord=params["norm"], axis=-1).max(1, keepdims=True)
        weight = np.repeat(weight, len(scores) // kv, axis=0)
        before = name == "vatp" and params["weight"] == "before_pool"
        scores = scores * weight if before else scores
        scores = np.array([_pool(row, spec["pool"]) for row in scores]) if pooled and spec["pool"] else scores
        scores = scores if before else scores * weight
    if name in ("caote", "fastcaote"):
        wide = np.repeat(v, len(scores) // kv, axis=0)
        h = scores / scores.sum(1, keepdims=True)
        x = (h[..., None] * wide).sum(1) if name == "caote" else wide.mean(1)
        scores = h / (1 - h) * np.linalg.norm(wide - x[:, None], axis=-1) ** (2 if params["squared"] else 1)
    return scores[:, spec["sink"] : stop]


def _group(scores: Array, group: str, kv: int) -> Array:
    if group == "layer_mean":
        return np.tile(scores.mean(0), (kv, 1))
    if group == "none" or len(scores) == kv:
        return scores
    return getattr(scores.reshape(kv, -1, scores.shape[1]), group)(1)


def _pool(row: Array, pool: dict[str, Any]) -> Array:
    half, fill = pool["size"] // 2, -np.inf if pool["kind"] == "max" else 0
    wide = np.concatenate((np.full(half, fill), row, np.full(half, fill)))
    windows = [wide[start : start + pool["size"]] for start in range(len(row))]
    return np.array([window.max() if pool["kind"] == "max" else window.sum() / pool["size"] for window in windows])


def best(entries: Sequence[tuple[float, float, int, int, int]]) -> list[tuple[float, float, int, int, int]]:
    """(score, unpooled, layer, head, place) from best to worst."""
    return sorted(entries, key=lambda entry: (-entry[0], -entry[1], *entry[2:]))


def largest_remainder(targets: Sequence[float], total: int, n: int) -> list[int]:
    targets = [round(float(target), 9) for target in targets]
    counts = [int(np.floor(target)) for target in targets]
    order = sorted(range(len(targets)), key=lambda i: (-round(targets[i] - counts[i], 9), i))
    while sum(counts) < total:
        for i in order:
            if sum(counts) < total and counts[i] < n:
                counts[i] += 1
    return counts


def shares(total: int, weights: Sequence[float], n: int) -> list[int]:
    fixed: dict[int, float] = {}
    while True:
        left = total - sum(fixed.values())
        mass = sum(w for i, w in enumerate(weights) if i not in fixed)
        given = {i: left * w / mass for i, w in enumerate(weights) if i not in fixed}
        over = [i for i, target in given.items() if target > n]
        if not over:
            return largest_remainder([fixed.get(i, given.get(i, 0)) for i in range(len(weights))], total, n)
        fixed.update(dict.fromkeys(over, n))
