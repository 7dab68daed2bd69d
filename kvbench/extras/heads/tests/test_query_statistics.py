"""Statistics of queries: against what the model had before it rotated them; models that rotate in other ways."""

from typing import Any

import pytest
import torch

from kvbench.extras.heads.calibration import before_rotation
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.key_rotation import key_rotations
from tests.models.families import tiny
from tests.models.test_rotation import PROMPT
from tests.models.test_rotation import before_rotation as spied


@pytest.mark.parametrize(
    ("family", "interleaved"),
    [("llama", False), ("llama3 rope", False), ("qwen3", False), ("gemma2", False), ("glm4", True)],
)
def test_queries_are_those_before_the_rotation(family: str, interleaved: bool) -> None:
    """The model's own norm of queries included; layers without a window; halves or neighbours turn together."""
    changes: dict[str, Any] = {"partial_rotary_factor": 1.0} if family == "glm4" else {}
    model = tiny(family, **changes)
    bridge.attach(model)
    rotations = key_rotations(model, "{}")
    cache, calls = Engine(model, max_length=512).prefill(PROMPT, {61}).cache, spied(model)
    assert cache.evictable
    for layer in cache.evictable:
        plain = calls[layer.index][0].double()
        first, second = (plain[..., ::2], plain[..., 1::2]) if interleaved else plain.split(plain.shape[2] // 2, dim=2)
        numbers = before_rotation(layer.observed(61).queries, rotations[layer.index])
        assert torch.allclose(numbers, torch.complex(first.contiguous(), second.contiguous()), atol=1e-4)


def test_what_is_rotated_in_part_or_not_at_all_is_refused() -> None:
    model = tiny("glm4")
    bridge.attach(model)
    with pytest.raises(ValueError, match="the model rotates 6 of the 12 numbers of a key; TriAttention is defined for"):
        before_rotation(torch.randn(6, 61, 12), key_rotations(model, "{}")[0])
    model = tiny("opt")
    bridge.attach(model)
    with pytest.raises(ValueError, match="OPT does not rotate the keys of layer 0 by a table of frequencies"):
        key_rotations(model, "OPT {}")
