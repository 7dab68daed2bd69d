"""The repeat pass of the golden cases' contract written down a second time."""

from typing import Any

import numpy as np

from kvbench.extras.conformance.tests.naive import Array
from kvbench.extras.conformance.tests.naive_budgets import decided


def repeated(spec: dict[str, Any], arrays: dict[str, Array]) -> dict[str, Array]:
    """Everything that a case with `probe: repeat` expects."""
    names = ("query_repeat", "key_repeat", "key", "value")
    q, again, k, v = (arrays[name].astype(float) for name in names)
    raws = [_strongest(spec, *layer) for layer in zip(q, again, k, strict=True)]
    scores, lengths, kept = decided(spec, raws, list(v))
    return {"scores": scores, "lengths": lengths, "kept": kept}


def _strongest(spec: dict[str, Any], q: Array, again: Array, k: Array) -> Array:
    params, size = spec["score"]["params"], len(q) // len(k)
    prefix, scores = params["prefix"], np.zeros((len(q), k.shape[1]))
    for (start, stop), (first, last) in zip(params["chunks"], params["rows"], strict=True):
        for head, rows in enumerate(q[:, first:last]):
            own = head // size
            for row, query in enumerate(rows):
                seen = np.concatenate((k[own, :prefix], k[own, start:stop], again[own, first : first + row + 1]))
                z = seen @ query / len(query) ** 0.5
                a = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
                scores[head, start:stop] = np.maximum(scores[head, start:stop], a[prefix : prefix + stop - start])
    return scores
