"""Golden cases of tests/golden/answer_budget: evictions from an answer with a budget of its own, written a second time.

    PYTHONPATH=. python scripts/golden_answer_budget.py tests/golden/answer_budget

Scores and kept pairs of every step are those of `kvbench/extras/conformance/tests/naive_steps.py`, in float64;
nothing of kvbench decides them. Inputs are those of `scripts/golden_evictions.py`, of which
the last tokens are the answer's.
"""

import sys
from pathlib import Path
from typing import Any

from kvbench.extras.conformance.golden import Case
from kvbench.extras.conformance.tests.cases import save
from kvbench.extras.conformance.tests.naive_steps import decoded
from scripts.golden_evictions import SHAPE, case, inputs

STEPS = 12
"""Tokens of the answer, the last of `SHAPE`."""
TOVA: dict[str, Any] = {"score": {"name": "attn", "params": {}}, "window": 1, "recent": 1, "budget_tokens": 17}
H2O: dict[str, Any] = {"score": {"name": "obcache_value", "params": {}}, "window": "all", "recent": 2, "sink": 2}
CAKE: dict[str, Any] = {"score": {"name": "cake", "params": {"gamma": 200.0}}, "window": 8, "recent": 3}
STREAMING: dict[str, Any] = {"score": {"name": "recency", "params": {}}, "window": 1, "recent": 0, "sink": 4}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "answer_tova": (TOVA, {"answer_budget": 4}),
    "answer_of_a_whole_prompt": (TOVA | {"budget_tokens": 100}, {"answer_budget": 5}),
    "answer_h2o": (
        H2O | {"group": "none", "budget_tokens": 20, "pool": {"kind": "max", "size": 3}},
        {"answer_budget": 5, "state": "accumulate"},
    ),
    "answer_cake_slots_by_score": (
        CAKE | {"pool": {"kind": "avg", "size": 5}, "order": ["pool", "group"], "budget_tokens": 18},
        {"answer_budget": 6, "slot_order": "score"},
    ),
    "answer_streaming": (STREAMING | {"budget_tokens": 14}, {"answer_budget": 3, "state": "none"}),
}
"""The spec of each case beside what all cases have, and its schedule."""


def main() -> None:
    """Write all cases."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokens = SHAPE["tokens"] - STEPS
    for seed, (name, (spec, schedule)) in enumerate(CASES.items(), start=70):
        arrays = inputs(seed)
        steps = {f"{part}_step": array[:, :, tokens:, None].transpose(2, 0, 1, 3, 4) for part, array in arrays.items()}
        arrays = {part: array[:, :, :tokens] for part, array in arrays.items()} | steps
        everything = arrays["key"][..., 0] == arrays["key"][..., 0]
        fields, _ = case(name, seed, everything, everything, **spec)
        fields |= {"kind": "decode", "shape": SHAPE | {"tokens": tokens}}
        fields["schedule"] = {"steps": STEPS, "state": "overwrite"} | schedule
        expected = decoded(fields, arrays)
        save(Case(fields | {"total_pairs": int(expected["lengths"].sum())}, arrays | expected), folder / f"{name}.npz")


if __name__ == "__main__":
    main()
