"""Rotary embeddings that depend on the length, against transformers on models that were never used before."""

import pytest
import torch
from transformers import AutoConfig

from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.rope import LengthRope, length_rope
from tests.models.families import SIZES, tiny

BORDER = 40
LONG = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 5.0, 9.0],
        "original_max_position_embeddings": BORDER,
    },
    "original_max_position_embeddings": BORDER,
}
DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "max_position_embeddings": BORDER,
}
KINDS = {"longrope": ("phi3", LONG), "dynamic": ("llama", DYNAMIC)}


def engine(kind: str) -> Engine:
    family, changes = KINDS[kind]
    model = tiny(family, **changes)
    bridge.attach(model)
    return Engine(model, prefill_chunk=7, max_batch=2, max_length=200, rope=length_rope(model.config))


def fresh_logits(kind: str, ids: torch.Tensor) -> torch.Tensor:
    family, changes = KINDS[kind]
    with torch.inference_mode():
        return tiny(family, **changes)(ids[None], use_cache=False).logits[0, -1]


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 97, (90,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_any_length_are_read_whole(kind: str, ids: torch.Tensor) -> None:
    """Also after longer ones, which transformers would remember: a row must not depend on what ran before."""
    reader = engine(kind)
    for tokens in (90, 30, 60, BORDER, BORDER + 1, 90):
        logits = reader.prefill(ids[:tokens]).logits
        assert (logits - fresh_logits(kind, ids[:tokens])).abs().max() < 1e-4
    blocks = engine(kind)
    blocks.rope = None
    assert (blocks.prefill(ids[:60]).logits - fresh_logits(kind, ids[:60])).abs().max() > 1e-2, "blocks must matter"


@pytest.mark.parametrize(("kind", "prompt"), [("longrope", 30), ("longrope", 60), ("dynamic", 30)])
def test_decoding_on_one_side_of_the_border_is_that_of_transformers(kind: str, prompt: int, ids: torch.Tensor) -> None:
    reader = engine(kind)
    tile = RaggedBatch([reader.prefill(ids[:prompt]).cache], reader.max_batch, max_new_tokens=8)
    reader.read(tile, ids[prompt : prompt + 5].expand(2, -1))
    for step in (5, 6, 7):
        logits = reader.read(tile, ids[prompt + step].expand(2, 1))[0]
        assert (logits - fresh_logits(kind, ids[: prompt + step + 1])).abs().max() < 1e-4


@pytest.mark.parametrize(("kind", "prompt", "later"), [("longrope", 35, 6), ("dynamic", 35, 6), ("dynamic", 60, 1)])
def test_frequencies_that_would_change_under_the_cache_are_refused(
    kind: str, prompt: int, later: int, ids: torch.Tensor
) -> None:
    reader, message = engine(kind), f"rope_type {kind} changes its frequencies beyond {BORDER} tokens"
    with pytest.raises(
        ValueError,
        match=f"{message}: after a prompt of {prompt} tokens {later} more tokens would need other frequencies",
    ):
        reader.check_length(prompt, later)
    tile = RaggedBatch([reader.prefill(ids[:prompt]).cache], reader.max_batch, max_new_tokens=8)
    with pytest.raises(ValueError, match=message):
        reader.read(tile, ids[:later].expand(2, -1))


def test_the_kind_is_found_in_the_configuration() -> None:
    """Flat, by layer type, or not there; two that differ are refused."""
    local = {"rope_type": "default", "rope_theta": 10000.0}

    def of(full: dict[str, object], sliding: dict[str, object]) -> LengthRope | None:
        rope = {"full_attention": full, "sliding_attention": sliding}
        return length_rope(AutoConfig.for_model("gemma3_text", **(SIZES | {"rope_parameters": rope})))

    dynamic, long = DYNAMIC["rope_parameters"], LONG["rope_parameters"]
    assert isinstance(dynamic, dict) and isinstance(long, dict)
    assert length_rope(AutoConfig.for_model("llama", **(SIZES | DYNAMIC))) == LengthRope("dynamic", BORDER)
    assert of(local, local) is None
    assert of(dynamic, local) == LengthRope("dynamic", 512)
    with pytest.raises(ValueError, match="dynamic beyond 512, longrope beyond 40"):
        of(dynamic, long)
