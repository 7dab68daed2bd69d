"""Tiny random models of every family that kvbench is known to read, and the settings that make each one special."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvbench.models import bridge
from kvbench.models.engine import Engine

PROMPT = torch.randint(3, 97, (61,), generator=torch.Generator().manual_seed(3))
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Grouped-query attention, and no size a power of two where a family allows it."""

MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
LOCAL = {"head_dim": 10, "layer_types": MIXED, "sliding_window": 19}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0}
            | {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2 window": ("qwen2", {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 2}),
    "qwen3": ("qwen3", {"head_dim": 10}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": 19}),
    "phi3": ("phi3", {}),
    "phi3 window": ("phi3", {"sliding_window": 23}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"layer_types": MIXED, "sliding_window": 19}),
    "granite": (
        "granite",
        {"attention_multiplier": 0.3, "residual_multiplier": 0.7, "logits_scaling": 2.0, "embedding_multiplier": 3.0},
    ),
    "gemma2": (
        "gemma2",
        LOCAL | {"query_pre_attn_scalar": 7, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": ("gemma3_text", LOCAL | {"query_pre_attn_scalar": 7}),
    "gpt_oss": (
        "gpt_oss",
        LOCAL
        | {"num_local_experts": 5, "num_experts_per_tok": 2}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "qwen2_moe": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 40}),
    "qwen3_moe": ("qwen3_moe", EXPERTS | {"head_dim": 10}),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 19}),
    "cohere2": ("cohere2", {"layer_types": MIXED, "sliding_window": 19, "logit_scale": 0.3}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}),
    "glm4": ("glm4", {"head_dim": 12}),
    "stablelm": ("stablelm", {}),
    "phi": ("phi", {"partial_rotary_factor": 0.5}),
    "opt": ("opt", {"ffn_dim": 80, "word_embed_proj_dim": 48, "num_key_value_heads": None}),
}
"""Name, model type of transformers and what differs from `SIZES`."""

LINEAR = {"linear_num_key_heads": 2, "linear_key_head_dim": 6, "linear_value_head_dim": 10}
MAMBA = {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_n_groups": 1, "mamba_expand": 2}
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": (
        "qwen3_next",
        EXPERTS | LINEAR | {"head_dim": 10, "linear_num_value_heads": 4, "shared_expert_intermediate_size": 40},
    ),
    "qwen3_5": ("qwen3_5_text", LINEAR | {"head_dim": 10, "linear_num_value_heads": 4}),
    "olmo_hybrid": ("olmo_hybrid", LINEAR | {"linear_num_value_heads": 2}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
    "bamba": ("bamba", MAMBA | {"attn_layer_indices": [1, 3]}),
    "granite hybrid": (
        "granitemoehybrid",
        MAMBA
        | {"layer_types": ["mamba", "attention"] * 2, "num_local_experts": 2, "num_experts_per_tok": 1}
        | {"shared_intermediate_size": 40},
    ),
    "nemotron_h": (
        "nemotron_h",
        {"layers_block_type": ["mamba", "attention", "moe", "attention"], "mamba_num_heads": 12, "mamba_head_dim": 8}
        | {"ssm_state_size": 6, "n_groups": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
        | {"moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 40},
    ),
    "falcon_h1": ("falcon_h1", MAMBA | {"head_dim": 8, "mamba_d_ssm": 96, "mamba_chunk_size": 16}),
}
"""Families whose layers have a recurrent state, some of them beside keys and values."""


def tiny(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A random model with eager attention; vectors such as norms, biases and sinks are made uneven too."""
    model_type, special = (FAMILIES | RECURRENT)[family]
    sizes = {name: size for name, size in SIZES.items() if model_type != "nemotron_h" or name != "num_hidden_layers"}
    config = AutoConfig.for_model(model_type, **(sizes | special | changes))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def engine_of(
    family: str, dtype: torch.dtype = torch.float32, block: int = 13, max_batch: int = 3, **changes: Any
) -> Engine:
    """A random model that reads sequences of up to 512 tokens by the bridge."""
    model = tiny(family, dtype, **changes)
    bridge.attach(model)
    return Engine(model, prefill_chunk=block, max_batch=max_batch, max_length=512)
