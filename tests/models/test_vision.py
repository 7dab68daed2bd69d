"""Vision-language checkpoints whose text model is causal are read as text, from their files."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import ModelSpec
from scripts.model_types.checks import PROMPT
from scripts.model_types.tiny import VOCABULARY, config_of
from tests.models.conftest import save
from tests.models.masked import masked_forward

TYPES = ["qwen3_vl", "qwen2_5_vl", "qwen3_5", "gemma3", "mistral3", "llava"]


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(9, VOCABULARY, (PROMPT + 6,), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("model_type", TYPES)
def test_a_vision_checkpoint_is_read_as_text(model_type: str, ids: torch.Tensor, tmp_path: Path) -> None:
    """All weights are there; logits are transformers', and after an eviction those of a pass with its mask."""
    torch.manual_seed(7)
    model = AutoModelForImageTextToText.from_config(config_of(model_type), attn_implementation="eager").float().eval()
    save(model, tmp_path)
    with torch.inference_mode():
        expected = model(input_ids=ids[None], use_cache=False).logits[0]
    engine = load(model_info(ModelSpec("hf", str(tmp_path), attention="eager"))).engine
    cache = engine.prefill(ids[:PROMPT], {8}).cache
    assert differing(engine, cache, ids, expected) < 1e-4
    eviction = Eviction(Policy("snapkv", window=8, recent=8), Attention(), TokenBudget(20))
    decision = eviction.decide(cache)
    kept = dict(zip((layer.index for layer in cache.evictable), decision.kept, strict=True))
    bridge.attach(model)
    masked = masked_forward(model, ids, PROMPT, [kept.get(layer) for layer in range(cache.layers[-1].index + 1)])
    assert differing(engine, eviction.evict(cache, decision), ids, masked) < 1e-4 < (masked - expected).abs().max()


def differing(engine: Engine, cache: object, ids: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference of a logit over an answer, its first two tokens read together."""
    batch = RaggedBatch([cache], engine.max_batch, 6)  # type: ignore[list-item]
    parts = (ids[PROMPT : PROMPT + 2], *ids[PROMPT + 2 :].split(1))
    logits = torch.stack([engine.read(batch, part.expand(engine.max_batch, -1))[0] for part in parts])
    return float((logits - expected[PROMPT + 1 :]).abs().max())
