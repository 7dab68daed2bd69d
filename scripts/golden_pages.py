"""Golden cases of tests/golden/pages: whole pages and shared sets, by the contract written down a second time.

    PYTHONPATH=. python scripts/golden_pages.py tests/golden/pages

Scores, budgets and kept sets are those of `kvbench/extras/conformance/tests/naive_pages.py`, in float64;
nothing of kvbench decides them. Inputs are those of `scripts/golden_evictions.py`.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.extras.conformance.golden import Case
from kvbench.extras.conformance.tests.cases import save
from kvbench.extras.conformance.tests.naive_pages import expected_pages
from scripts.golden_evictions import SHAPE, case, inputs

MAX_POOL = {"kind": "max", "size": 5}
TOVA: dict[str, Any] = {"score": {"name": "attn", "params": {}}, "window": 1, "recent": 0, "pool": None}
SNAPKV: dict[str, Any] = {"score": {"name": "attn", "params": {}}, "window": 8, "recent": 6, "pool": MAX_POOL}
CASES: dict[str, dict[str, Any]] = {
    "page": SNAPKV | {"page": 4, "budget_tokens": 23},
    "page_mean": SNAPKV | {"page": 4, "page_score": "mean", "budget_tokens": 23},
    "page_unaligned": SNAPKV | {"page": 5, "sink": 7, "budget_tokens": 29},
    "page_partly_filled": TOVA | {"page": 7, "page_score": "mean", "budget_tokens": 22},
    "page_query_heads": SNAPKV | {"page": 4, "group": "none", "budget_tokens": 20},
    "page_flat_heads": SNAPKV | {"page": 3, "heads": {"kind": "flat"}, "budget_tokens": 21},
    "page_pyramid_mix": SNAPKV
    | {
        "page": 2,
        "heads": {"kind": "mix", "alpha": 0.5},
        "layers": {"kind": "pyramid", "beta": 5},
        "budget_tokens": 24,
    },
    "page_global": SNAPKV | {"page": 3, "layers": {"kind": "global"}, "budget_tokens": 20},
    "page_entropy": SNAPKV | {"page": 3, "layers": {"kind": "entropy"}, "budget_tokens": 20},
    "share_layer": TOVA | {"share": "layer", "budget_tokens": 17},
    "share_layer_max": SNAPKV | {"share": "layer", "share_score": "max", "budget_tokens": 19},
    "share_layer_pyramid": SNAPKV | {"share": "layer", "layers": {"kind": "pyramid", "beta": 5}, "budget_tokens": 22},
    "share_model": SNAPKV | {"share": "model", "budget_tokens": 19},
    "share_model_max": SNAPKV | {"share": "model", "share_score": "max", "budget_tokens": 19},
    "share_model_signed": {"score": {"name": "key_diff", "params": {}}, "window": 1, "recent": 4, "share": "model"}
    | {"score_floor": 0.1, "budget_tokens": 20},
    "page_share_layer": SNAPKV | {"page": 4, "share": "layer", "budget_tokens": 23},
    "page_share_model": SNAPKV | {"page": 4, "page_score": "mean", "share": "model", "budget_tokens": 23},
    "page_share_model_max": SNAPKV | {"page": 3, "share": "model", "share_score": "max", "budget_tokens": 21},
}
"""The spec of each case, beside what all cases of `scripts/golden_evictions.py` have."""


def main() -> None:
    """Write all cases."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    heads = {"none": SHAPE["query_heads"]}
    for seed, (name, spec) in enumerate(CASES.items(), start=40):
        stored = heads.get(spec.get("group", "mean"), SHAPE["kv_heads"])
        everything = np.ones((SHAPE["layers"], stored, SHAPE["tokens"]), bool)
        fields, arrays = case(name, seed, np.zeros(everything.shape), everything, **spec)
        scores, lengths, kept = expected_pages(fields, *inputs(seed).values())
        arrays |= {"scores": scores, "lengths": lengths, "kept": kept}
        save(Case(fields | {"total_pairs": int(lengths.sum())}, arrays), folder / f"{name}.npz")


if __name__ == "__main__":
    main()
