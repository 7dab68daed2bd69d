"""What is not known is refused by name: by its configuration, or by a few tokens that come out differently."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import check_architecture
from kvbench.models.loading.check import check_model, eager_logits
from kvbench.models.wide_head import WideHead, widen
from tests.models.families import FAMILIES, RECURRENT, SIZES, tiny
from tests.pretended_gpu import PretendedGpu


def try_out(model: Any, dtype: torch.dtype = torch.float32) -> None:
    """The check as it runs when a model is loaded."""
    model = model.to(dtype).eval()
    expected = eager_logits(model)
    widen(model)
    bridge.attach(model)
    check_model(Engine(model, max_length=512), expected)


@pytest.mark.parametrize("family", FAMILIES | RECURRENT)
def test_known_families_pass_in_half_precision(family: str) -> None:
    """Those in float32 pass in test_families.py."""
    try_out(tiny(family), torch.bfloat16)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        *(
            (name, {}, rf"36 of 48 layers of {name} are .* chunked_attention, whose queries see the keys of their own")
            for name in ("llama4_text", "llama4")
        ),
        *(
            (name, {}, rf"of \d+ layers of {name} are of the type \w+_attention, whose indexer chooses keys")
            for name in ("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4")
        ),
        ("deepseek_v4", {}, "are of the type heavily_compressed_attention, whose keys stand for several tokens"),
        ("rwkv", {}, "rwkv cannot be read: none of its layers caches keys and values"),
        ("florence2", {}, "florence2 is an encoder-decoder"),
        ("mamba", {}, "no layer of mamba caches keys and values, so nothing can be evicted"),
        ("gemma3n_text", {}, "the last 15 layers of gemma3n_text reuse keys and values"),
        ("gemma4_text", {"num_kv_shared_layers": 4}, "the last 4 layers of gemma4_text reuse keys and values"),
        ("bart", {}, "bart is an encoder-decoder"),
        ("bert", {"is_decoder": True}, None),
        ("bloom", {}, "bloom cannot be read: its attention adds a bias for the distance between tokens"),
        ("falcon", {"alibi": True}, "bias for the distance between tokens .alibi.: allowed: alibi=false"),
        ("big_bird", {"is_decoder": True}, "allowed: attention_type=original_full"),
        ("vit", {}, "transformers has no causal language model of the type vit"),
        ("siglip_vision_model", {}, "transformers has no causal language model of the type siglip"),
    ],
)
def test_configurations_are_refused_by_name(model_type: str, changes: dict[str, Any], message: str | None) -> None:
    config = AutoConfig.for_model(model_type, **changes)
    if message is None:
        check_architecture(config, "a test")
        return
    with pytest.raises(ValueError, match=f"a test: .*{message}"):
        check_architecture(config, "a test")


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("gptj", {"n_layer": 2, "n_head": 6, "n_embd": 48, "rotary_dim": 4}, "GPTJForCausalLM computes attention in"),
        ("bert", {}, "BertLMHeadModel is not causal: its first token sees later ones; .* has is_decoder: true"),
    ],
)
def test_models_that_use_attention_otherwise_are_refused(
    model_type: str, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(bridge.OWN_ATTENTION, "gptj")
    config = AutoConfig.for_model(model_type, **(SIZES | {"num_hidden_layers": 2} | changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with pytest.raises(ValueError, match=message):
        try_out(model)


DROPPED = {"softcap": "gemma2", "s_aux": "gpt_oss", "position_ids": "llama", "scaling": "granite"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("option", DROPPED)
def test_a_bridge_that_drops_something_is_found_out(
    option: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check must not be blind: without caps, sinks, positions or the model's scaling it refuses."""
    model = tiny(DROPPED[option])
    if option == "position_ids":
        forward = model.forward
        monkeypatch.setattr(model, "forward", lambda position_ids=None, **rest: forward(**rest))
    else:
        whole = bridge.attention

        def without(*arguments: Any, **options: Any) -> Any:
            return whole(*arguments, **(options | {option: 0.1 if option == "scaling" else None}))

        monkeypatch.setattr(bridge, "attention", without)
    with pytest.raises(ValueError, match=r"does not match transformers: the logits of 8 tokens (at once|in parts)"):
        try_out(model, dtype)


def test_a_window_that_the_configuration_does_not_tell_is_refused() -> None:
    model = tiny("mistral")
    expected = eager_logits(model)
    bridge.attach(model)
    layer = model.model.layers[1].self_attn
    layer.config = deepcopy(layer.config)
    layer.config.sliding_window = 100
    with pytest.raises(ValueError, match=r"layer 1 of MistralForCausalLM asks .* window of 100, but .* says None"):
        check_model(Engine(model, max_length=512), expected)


def test_half_precision_models_answer_in_float32() -> None:
    """The output layer of a bfloat16 model sums in float32: its logits are those of the exact products."""
    model = tiny("gemma2", torch.bfloat16)
    ids = torch.arange(5, 17)[None]
    with torch.inference_mode():
        hidden = model.model(ids, use_cache=False).last_hidden_state
        narrow = model(ids, use_cache=False).logits
        assert widen(model) and isinstance(model.get_output_embeddings(), WideHead)
        wide = model(ids, use_cache=False).logits
        exact = hidden.double() @ model.get_input_embeddings().weight.double().mT
    exact = 5 * (exact / 5).tanh()
    assert narrow.dtype == torch.bfloat16 and wide.dtype == torch.float32
    assert (wide - exact).abs().max() < 1e-5 < (narrow - exact).abs().max()
    assert not widen(tiny("llama"))


def test_a_gpu_sums_in_float32_without_a_wide_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's product with an output type, which CPUs do not have, is given both in half precision."""
    layer, hidden = torch.nn.Linear(12, 30, dtype=torch.bfloat16), torch.randn(2, 3, 12).bfloat16()
    dtypes = []

    def mm(left: torch.Tensor, right: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
        dtypes.append((left.dtype, right.dtype, out_dtype))
        return torch.bmm(left.float()[None], right.float()[None])[0]

    with torch.inference_mode():
        expected = WideHead(layer)(hidden)
        assert not dtypes
        with PretendedGpu():
            monkeypatch.setattr(torch, "mm", mm)
            logits = WideHead(layer.to("cuda"))(hidden.to("cuda")).cpu()
    assert dtypes == [(torch.bfloat16, torch.bfloat16, torch.float32)]
    assert logits.shape == expected.shape and (logits - expected).abs().max() < 1e-6


def test_weights_that_are_no_numbers_are_told_from_attention_that_is_not_known() -> None:
    model = tiny("llama")
    model.model.layers[1].self_attn.v_proj.weight.data[3, 5] = torch.nan
    with pytest.raises(ValueError, match="logits of 8 tokens hold NaN or inf: the weights are broken, or too large"):
        try_out(model)
