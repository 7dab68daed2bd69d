"""Pages and shared sets written down a second time: one token, one page and one list at a time, in float64."""

from typing import Any

import numpy as np

from kvbench.extras.conformance.tests.naive import Array, best, raw_scores, shaped
from kvbench.extras.conformance.tests.naive_budgets import dispersion, global_counts, head_budgets, layer_budgets, worth

Pages = list[list[int]]
"""The tokens of each page."""


def expected_pages(spec: dict[str, Any], query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Scores [layers, stored heads, tokens], NaN where protected; lengths; kept tokens."""
    layers = list(zip(*(part.astype(float) for part in (query, key, value)), strict=True))
    size, tokens, sink, recent = spec.get("page", 1), key.shape[2], spec["sink"], spec["recent"]
    raws = [raw_scores(spec, *layer) for layer in layers]
    by_token = [
        tuple(_placed(shaped(spec, raw, v, pooled), sink, tokens) for pooled in (True, False))
        for raw, (_, _, v) in zip(raws, layers, strict=True)
    ]
    protected = [*range(min(sink, tokens)), *range(max(0, tokens - recent), tokens)]
    pages: Pages = [list(range(start, min(start + size, tokens))) for start in range(0, tokens, size)]
    always = [any(token in protected for token in page) for page in pages]
    free = [page for page, stays in zip(pages, always, strict=True) if not stays]
    first = always.index(False) if free else len(pages)
    counted = spec | {"budget_tokens": spec["budget_tokens"] // size, "sink": first}
    counted["recent"] = len(pages) - first - len(free)
    own = [tuple(_of_pages(spec, rows, free) for rows in layer) for layer in by_token]
    worths = [
        dispersion(scores[:, sink : tokens - recent]) if spec["layers"]["kind"] == "entropy" else worth(spec, *layer)
        for (scores, _), layer in zip(by_token, layers, strict=True)
    ]
    shares = layer_budgets(counted, worths, len(free))
    counts = [head_budgets(counted, *layer, share) for layer, share in zip(own, shares, strict=True)]
    if spec["layers"]["kind"] == "global":
        counts = global_counts(counted, own)
    scores = np.array([layer[0] for layer in by_token])
    kept = np.ones(scores.shape, bool)
    merged = [[_merged(spec, layer, pooled, by_token) for layer in range(len(layers))] for pooled in (0, 1)]
    for layer, head in np.ndindex(scores.shape[:2]):
        pooled, plain = (_of_pages(spec, merged[which][layer], free)[head] for which in (0, 1))
        order = best([(pooled[number], plain[number], 0, 0, number) for number in range(len(free))])
        for entry in order[counts[layer][head] :]:
            kept[layer, head, free[entry[4]]] = False
    return scores, kept.sum(2), kept


def _placed(scores: Array, sink: int, tokens: int) -> Array:
    wide = np.full((len(scores), tokens), np.nan)
    wide[:, sink : sink + scores.shape[1]] = scores
    return wide


def _of_pages(spec: dict[str, Any], rows: Array, free: Pages) -> Array:
    """The scores of the free pages, one row a head."""
    merge = max if spec.get("page_score", "max") == "max" else lambda values: sum(values) / len(values)
    return np.array([[merge([row[token] for token in page]) for page in free] for row in rows]).reshape(len(rows), -1)


def _merged(spec: dict[str, Any], layer: int, which: int, by_token: list[Any]) -> Array:
    """What the heads of a layer choose by: their own scores, or those that they share."""
    share, most = spec.get("share", "head"), spec.get("share_score", "mean") == "max"
    rows = by_token[layer][which]
    if share == "head":
        return rows
    if share == "layer":
        one = np.max([_standard(row) for row in rows], axis=0) if most else _mean(rows)
    elif most:
        one = np.max([_standard(row) for scores in by_token for row in scores[which]], axis=0)
    else:
        one = _mean([_standard(_mean(scores[which])) for scores in by_token])
    return np.tile(one, (len(rows), 1))


def _mean(rows: Any) -> Array:
    return np.sum(rows, axis=0) / len(rows)


def _standard(row: Array) -> Array:
    ranked = row[~np.isnan(row)]
    return (row - ranked.mean()) / ranked.std() if ranked.std() > 0 else row * 0
