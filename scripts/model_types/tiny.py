"""A tiny random model of any causal type: its default configuration, with every size made small."""

from typing import Any

import torch

from kvbench.models.loading.weights import random

VOCABULARY = 128
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim_model_base", "word_embed_proj_dim", "emb_dim"), 32),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "output_embedding_size", "embedding_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "kv_channels", "swa_head_dim", "global_head_dim", "dim_head"), 8),
    **dict.fromkeys(("intermediate_size", "n_inner", "dff", "dim_ff", "ffn_hidden_size", "d_inner"), 48),
    **dict.fromkeys(
        ("ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "feed_forward_size", "intermediate_size_mlp"), 48
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 24),
    **dict.fromkeys(("expert_ffn_hidden_size", "shared_experts_intermediate_size", "dense_intermediate_size"), 24),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length"), 512),
    **dict.fromkeys(("max_target_positions", "max_source_positions"), 512),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "local_attention"), 19),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 12),
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    "initializer_range": 0.2,
    "init_std": 0.2,
    "chunk_size": 16,
    "mamba_chunk_size": 16,
    "hidden_size_per_layer_input": 8,
    "type_vocab_size": 2,
    "patch_size": 4,
    "image_size": 16,
    "depth": 2,
}
"""Sizes by the names that configurations give them; a type's default of None stays."""

DECODER = {"is_decoder": True, "is_encoder_decoder": False}
"""What configurations of encoders and of encoder-decoders say when their causal class is saved."""
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16}


def _each(model_types: tuple[str, ...], settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same settings for several types."""
    return {model_type: settings for model_type in model_types}


MROPE = {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}}
NO_INPUT = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
SPECIAL: dict[str, dict[str, Any]] = {
    **_each(("bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie"), DECODER),
    **_each(("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"), DECODER),
    **_each(("xlm-roberta", "xlm-roberta-xl"), DECODER),
    **_each(("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp"), DECODER),
    **_each(("pegasus", "plbart", "prophetnet", "whisper"), DECODER),
    **_each(("codegen", "gptj"), {"rotary_dim": 4}),
    **_each(("hunyuan_v1_dense", "hunyuan_v1_moe"), {"head_dim": 8}),
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "mimo_v2_flash": {"head_dim": 12},
    "big_bird": DECODER | {"attention_type": "original_full"},
    "xlm": {"causal": True},
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    **_each(("axk1", "deepseek_v3", "longcat_flash", "youtu"), {"head_dim": 4}),
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {
        "vision_config": {"mlp_layer_types": ["dense", "dense"], "adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
    },
    "emu3": {"text_config": {"pad_token_id": 0}},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "gpt_neo": {"default": {"num_layers": 24}, "attention_types": [[["global", "local"], 1]]},
    "gemma4_assistant": {"default": {"text_config": {"model_type": "gemma4_text"} | NO_INPUT}, "text_config": NO_INPUT},
    "granitemoehybrid": MAMBA | {"layer_types": ["linear_attention", "full_attention"]},
    **_each(("reformer", "trocr"), {"is_decoder": True}),
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "mllama": {"text_config": {"pad_token_id": 0}},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "moe", "mlp"],
        "num_hidden_layers": "unset",
    }
    | {"moe_shared_expert_intermediate_size": 24},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16}
    | {"indexer_compress_ratio": 4, "ple_embed_dim": 8},
    **_each(("qwen2_vl", "qwen2_5_vl"), MROPE),
    "recurrent_gemma": {"num_hidden_layers": 3},
    "xmod": DECODER | {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3}
    | {"n_mamba_heads": 4},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""What a type needs besides `SMALL`."""
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


class Unbuildable(Exception):
    """transformers itself cannot make a model of a type."""


def small(config: Any) -> dict[str, Any]:
    """The small sizes of a configuration; of its parts too."""
    changes: dict[str, Any] = {}
    settings = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    for name, value in settings.items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            changes[name] = small(value)
        elif (
            name == "sliding_window"
            and config.model_type not in ("moshi", "moshi_depth", "mimi")
            and not settings.get("layer_types")
        ):
            changes[name] = None  # otherwise every layer is local
        elif name in SMALL and value is not None and not isinstance(value, (bool, list, dict)):
            changes[name] = SMALL[name]
    heads = ("num_attention_heads", "num_key_value_heads")
    if all(name in changes for name in heads) and settings[heads[0]] == settings[heads[1]]:
        changes["num_key_value_heads"] = changes["num_attention_heads"]
    if kinds := settings.get("layer_types"):
        each = list(dict.fromkeys(kinds))
        each = each if len(each) > 1 else each * 2
        changes |= {"layer_types": each, "num_hidden_layers": len(each)}
    return changes


def config_of(model_type: str) -> Any:
    """The tiny configuration of a type."""
    from transformers import AutoConfig

    special = SPECIAL.get(model_type, {})
    changes: dict[str, Any] = small(AutoConfig.for_model(model_type, **special.get("default", {}))) | ENDS
    for name, value in special.items():
        changes[name] = changes.get(name, {}) | value if isinstance(value, dict) else value
    changes.pop("default", None)
    return AutoConfig.for_model(model_type, **{name: value for name, value in changes.items() if value != "unset"})


def model_of(config: Any) -> Any:
    """A random model with eager attention in float32; vectors such as norms, biases and sinks are made uneven too."""
    try:
        model = random(config, 7, torch.float32, torch.device("cpu")).eval()
    except ImportError as error:
        raise Unbuildable(" ".join(str(error).split())) from error
    torch.manual_seed(7)
    with torch.no_grad():
        if config.model_type == "openai-gpt":  # transformers draws its matrices with 0.02, whatever the configuration
            for module in model.transformer.h.modules():
                if hasattr(module, "nf"):
                    module.weight.mul_(10)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model
