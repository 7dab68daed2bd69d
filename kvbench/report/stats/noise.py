"""Answers that numeric noise could flip.

Greedy decoding takes the best token. Where the two best logits are closer than the arithmetic can tell apart, another
batch size, kernel or processor may take the other one, and the answer changes with it. ``top2_margin`` of a row is the
smallest gap between the two best logits over its answer. The step of a dtype is the distance between neighbouring
numbers from 16 to 32, where the best logits of language models commonly lie: 2^(4 - p) with p explicit bits of the
significand.
"""

from collections.abc import Mapping
from typing import Any

from kvbench.records import Row

STEPS: Mapping[str, float] = {
    "bfloat16": 2.0 ** (4 - 7),
    "float16": 2.0 ** (4 - 10),
    "float32": 2.0 ** (4 - 23),
    "float64": 2.0 ** (4 - 52),
}


def could_flip(row: Row, description: Mapping[str, Any] | None) -> bool | None:
    """Whether the margin of an answer is below the step of its cell's dtype; None where margin or dtype is unknown."""
    model = (description or {}).get("model")
    step = STEPS.get(str(model.get("dtype"))) if isinstance(model, Mapping) else None
    return None if step is None or row.top2_margin is None else row.top2_margin < step
