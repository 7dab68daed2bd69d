"""The budgets of the golden cases' contract written down a second time: who keeps how many, and which."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvbench.extras.conformance.tests.naive import Array, best, largest_remainder, raw_scores, rows_of, shaped, shares


def dispersion(scores: Array) -> float:
    """The entropy of a layer's scores, 1 where they are all alike."""
    p = scores.flatten() / scores.sum()
    return float(-(p[p > 0] * np.log(p[p > 0])).sum() / np.log(p.size))


def worth(spec: dict[str, Any], q: Array, k: Array, v: Array) -> float:
    """What a preference reads of a layer."""
    if spec["layers"]["kind"] != "preference":
        return 1.0
    a = rows_of(spec, q, k, v)[0][..., : k.shape[1] - spec["recent"]]
    tau1, tau2 = spec["layers"]["tau1"], spec["layers"]["tau2"]
    return float((-(a * np.log(a + 1e-10)).sum()) ** (1 / tau1) * a.var(1, ddof=1).sum() ** (1 / tau2))


def layer_budgets(spec: dict[str, Any], worths: list[float], n: int) -> list[int]:
    """Candidates per stored head of every layer; more than n keeps a layer whole."""
    layers, kind, official = len(worths), spec["layers"]["kind"], spec["variant"] == "official"
    base = spec["budget_tokens"] - spec["sink"] - spec["recent"]
    if kind == "pyramid":
        beta = spec["layers"]["beta"]
        if not official:
            low = base / beta
            high = 2 * base - low
            if high > n:
                high, low = n, 2 * base - n
            line = [high - i * (high - low) / (layers - 1) for i in range(layers)]
            return largest_remainder(line, layers * base, n)
        if spec["heads"]["kind"] == "uniform" and n + spec["sink"] + spec["recent"] < 2 * base:
            return [base] * layers
        low = base // beta
        high = 2 * base - low
        if high >= n:
            high, low = n, 2 * base - n
        return [high - i * ((high - low) // (layers - 1)) for i in range(layers)]
    if kind == "entropy":
        return [int(e / sum(worths) * layers * base) for e in worths] if official else shares(layers * base, worths, n)
    if kind == "preference" and official and n + spec["sink"] <= spec["budget_tokens"]:
        return [n] * layers
    if kind == "preference":
        return cascade(worths, layers * base, n) if official else shares(layers * base, worths, n)
    return [base] * layers


def cascade(worths: list[float], total: int, n: int) -> list[int]:
    left = [n] * len(worths)
    for last in range(len(worths)):
        given = [int(p / sum(worths[: last + 1]) * total) for p in worths[: last + 1]]
        b = [min(x, n) for x in given]
        deal(b, sum(given) - sum(b), [i for i, x in enumerate(b) if x < n])
        difference = total - sum(b)
        deal(b, difference, [i for i, x in enumerate(b) if (x < n if difference > 0 else x > 1)])
        for layer, x in enumerate(b):
            left[layer] = min(left[layer], x, n)
    return left


def deal(b: list[int], amount: int, takers: list[int]) -> None:
    for turn in range(abs(amount) if takers else 0):
        b[takers[turn % len(takers)]] += 1 if amount > 0 else -1


def head_budgets(spec: dict[str, Any], scores: Array, unpooled: Array, b: int) -> list[int]:
    """Candidates of each stored head of a layer."""
    (heads, n), kind = scores.shape, spec["heads"]["kind"]
    if b > n:
        return [n] * heads
    if kind in ("uniform", "shared"):
        return [b] * heads
    entries = best([(scores[h, j], unpooled[h, j], 0, h, j) for h in range(heads) for j in range(n)])
    counts = [sum(entry[3] == h for entry in entries[: heads * b]) for h in range(heads)]
    if kind == "flat":
        return counts
    alpha = spec["heads"]["alpha"]
    if kind == "mix":
        if spec["variant"] == "paper":
            return largest_remainder([(1 - alpha) * c + alpha * b for c in counts], heads * b, n)
        floor = int((spec["budget_tokens"] if spec["layers"]["kind"] == "entropy" else b) * alpha)
        return [min(n, int(np.rint(np.float32(c * (1 - alpha)) + np.float32(floor)))) for c in counts]
    protected = spec["sink"] + spec["recent"]
    sure = max(0, int(alpha * (b + protected)) - protected)
    ranked = [best([(scores[h, j], unpooled[h, j], 0, h, j) for j in range(n)]) for h in range(heads)]
    rest = best([entry for own in ranked for entry in own[sure:]])[: heads * (b - sure)]
    return [sure + sum(entry[3] == h for entry in rest) for h in range(heads)]


def expected(spec: dict[str, Any], query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Scores [layers, stored heads, tokens], lengths and kept positions."""
    parts = [part.astype(float) for part in (query, key, value)]
    raws = [raw_scores(spec, *layer) for layer in zip(*parts, strict=True)]
    worths = [worth(spec, *layer) for layer in zip(*parts, strict=True)]
    return decided(spec, raws, list(parts[2]), worths)


def decided(
    spec: dict[str, Any], raws: list[Array], values: list[Array], worths: Sequence[float] = ()
) -> tuple[Array, Array, Array]:
    """The same from the scores before shaping, and what the layers are worth where their scores do not say."""
    sink, recent, tokens = spec["sink"], spec["recent"], values[0].shape[1]
    n, scored_layers = tokens - sink - recent, []
    for index, (raw, v) in enumerate(zip(raws, values, strict=True)):
        scores, unpooled = (shaped(spec, raw, v, pooled) for pooled in (True, False))
        entropy = spec["layers"]["kind"] == "entropy"
        scored_layers.append((scores, unpooled, dispersion(scores) if entropy else worths[index] if worths else 1.0))
    budgets = layer_budgets(spec, [scored[2] for scored in scored_layers], n)
    counts = [head_budgets(spec, *scored[:2], b) for scored, b in zip(scored_layers, budgets, strict=True)]
    if spec["layers"]["kind"] == "global":
        counts = global_counts(spec, [scored[:2] for scored in scored_layers])
    heads = len(counts[0])
    every = np.full((len(scored_layers), heads, tokens), np.nan)
    kept = np.ones((len(scored_layers), heads, tokens), dtype=bool)
    for layer, (scores, unpooled, _) in enumerate(scored_layers):
        every[layer, :, sink : tokens - recent] = scores
        for head, count in enumerate(counts[layer]):
            own = best([(scores[head, j], unpooled[head, j], 0, 0, j) for j in range(n)])
            kept[layer, head, [sink + entry[4] for entry in own[count:]]] = False
    return every, kept.sum(2), kept


def global_counts(spec: dict[str, Any], scored_layers: list[tuple[Array, Array]]) -> list[list[int]]:
    (heads, n), base = scored_layers[0][0].shape, spec["budget_tokens"] - spec["sink"] - spec["recent"]
    entries = best(
        [
            (scores[h, j], unpooled[h, j], layer, h, j)
            for layer, (scores, unpooled) in enumerate(scored_layers)
            for h in range(heads)
            for j in range(n)
        ]
    )
    kept = entries[: len(scored_layers) * heads * base]
    if spec["variant"] == "official" and kept:
        kept = [entry for entry in kept if entry[0] > kept[-1][0]]
    return [
        [sum(entry[2:4] == (layer, h) for entry in kept) for h in range(heads)] for layer in range(len(scored_layers))
    ]
