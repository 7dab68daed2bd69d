"""Models whose classes write attention out: what one tiny model of a type (`tests/scripts`) does not show."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.roformer import modeling_roformer

from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import cache_heads
from kvbench.models.loading.check import check_model, eager_logits
from scripts.model_types.checks import outcome_of
from scripts.model_types.tiny import config_of, model_of


@pytest.mark.parametrize("model_type", ["falcon", "gpt_neo", "gpt_neox_japanese", "openai-gpt", "roformer", "xlm"])
def test_a_type_with_its_own_attention_is_read(model_type: str) -> None:
    outcome = outcome_of(model_type)
    if model_type == "roformer" and not hasattr(modeling_roformer, "create_causal_mask"):
        assert "does not match transformers" in outcome.reason, "transformers 5.17 lets its decoder see later tokens"
        return
    assert not outcome.reason and 0 < max(outcome.keep_all, outcome.evicted) < 1e-4


@pytest.mark.parametrize("model_type", ["gptj", "openai-gpt", "gpt_neo"])
def test_the_model_is_as_before_afterwards(model_type: str) -> None:
    """Attributes of every module, and what transformers generates."""
    model = model_of(config_of(model_type))
    before = [set(vars(module)) for module in model.modules()]
    expected, implementation = eager_logits(model), model.config._attn_implementation
    with bridge.attached(model):
        check_model(Engine(model, max_length=512), expected)
        with bridge.attached(model):
            check_model(Engine(model, max_length=512), expected)
    assert [set(vars(module)) for module in model.modules()] == before
    assert model.config._attn_implementation == implementation
    assert torch.equal(eager_logits(model), expected)


@pytest.mark.parametrize(
    ("settings", "heads"),
    [
        ({}, 1),
        ({"multi_query": False, "num_kv_heads": 4}, 4),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 4),
    ],
)
def test_heads_of_falcon(settings: dict[str, Any], heads: int) -> None:
    """As transformers caches them: its newer layout repeats keys for all queries of a group."""
    config = config_of("falcon")
    for name, value in settings.items():
        setattr(config, name, value)
    model = model_of(config)
    cache = model(input_ids=torch.arange(5, 9)[None], use_cache=True).past_key_values
    assert cache.layers[0].keys.shape[1] == cache_heads(config)[0] == heads
    expected = eager_logits(model)
    bridge.attach(model)
    check_model(Engine(model, max_length=512), expected)


@pytest.mark.parametrize("model_type", ["gptj", "codegen", "falcon", "xlm"])
def test_keys_keep_the_dtype_of_the_model(model_type: str) -> None:
    """Some classes widen queries and keys for their product."""
    model = model_of(config_of(model_type)).to(torch.bfloat16)
    expected, dtypes = eager_logits(model), set[torch.dtype]()
    bridge.attach(model)
    engine = Engine(model, max_length=512)
    check_model(engine, expected)
    for layer in engine.prefill(torch.arange(5, 25), {8}).cache.layers:
        dtypes |= {part.dtype for part in (layer.keys, layer.values) if isinstance(part, Tensor)}
    assert dtypes == {torch.bfloat16}
