"""Queries without their rotation, for every family: against what the model had before it rotated them."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from kvbench.cache.kv_cache import PredictedQueries
from kvbench.eviction.scores.expected_attention import ExpectedAttention
from kvbench.models.engine import Engine
from kvbench.models.rope import rotations
from tests.models.families import FAMILIES, PROMPT, engine_of

FUTURE = PredictedQueries(skip=4, positions=30)
ROTATED = [name for name in FAMILIES if name != "opt"]


def before_rotation(model: Any, block: int = 61) -> list[tuple[Tensor, Tensor]]:
    """What the model's own function is given and gives back while the prompt is read, as [heads, tokens, size]."""
    calls: list[tuple[Tensor, Tensor]] = []
    attention = next(
        module for module in model.modules() if hasattr(module, "layer_idx") and hasattr(module, "scaling")
    )
    home: Any = sys.modules[type(attention).__module__]
    original = home.apply_rotary_pos_emb

    def spy(query: Tensor, *rest: Any, **options: Any) -> Any:
        rotated = original(query, *rest, **options)
        calls.append((query[0].detach(), rotated[0][0].detach()))
        return rotated

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(home, "apply_rotary_pos_emb", spy)
        Engine(model, prefill_chunk=block, max_length=512).prefill(PROMPT)
    return calls


@pytest.mark.parametrize("family", ROTATED)
def test_rotations_are_undone(family: str) -> None:
    model = engine_of(family).model
    every, calls = rotations(model), before_rotation(model)
    rotating = [layer for layer, rotation in every.items() if rotation.dims != "none"]
    assert len(rotating) == len(calls)
    for layer, (plain, rotated) in zip(rotating, calls, strict=True):
        assert torch.allclose(every[layer].undo(rotated, 0), plain, atol=1e-4)


@pytest.mark.parametrize("block", [61, 13])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "glm4"])
def test_the_statistics_are_those_of_the_plain_queries_turned(family: str, block: int) -> None:
    """Mean and covariance over all but the first tokens, turned by the average of the positions ahead."""
    engine = engine_of(family, block=block)
    every, calls = rotations(engine.model), before_rotation(engine.model)
    score = ExpectedAttention(FUTURE.skip, FUTURE.positions)
    for layer in engine.prefill(PROMPT, (), [score]).cache.evictable:
        plain, rotation = calls[layer.index][0][:, 4:], every[layer.index]
        assert rotation.dims != "none"
        turned = [rotation.turn(plain, *rotation.angles(61 + ahead, 1)) for ahead in range(30)]
        (statistics,) = layer.future_queries
        assert torch.allclose(statistics.mean, torch.stack(turned).mean((0, 2)), atol=1e-4)
        centred = (plain - plain.mean(1, keepdim=True)) @ rotation.ahead(61, FUTURE, plain).float()
        assert torch.allclose(statistics.covariance, centred.mT @ centred / 57, atol=1e-3)


def test_positions_that_are_learned_cannot_be_undone() -> None:
    model = engine_of("opt").model
    with pytest.raises(ValueError, match=r"rotates the queries of layer 0 in a way that kvbench cannot undo"):
        rotations(model)


def test_scaled_and_half_precision_rotations_are_undone() -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = engine_of("llama", dtype, rope_parameters=yarn).model
        assert all(rotation.dims != "none" for rotation in rotations(model).values())
