"""Attention features in a model's configuration, and errors for those that kvbench does not support.

Everything here runs before weights are loaded; `check.py` checks the loaded model.
"""

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kvbench.models.loading.spec import quantization_settings, read_json
from kvbench.support.errors import MissingFile, UserError

LAYER_TYPES = ("full_attention", "sliding_attention", "hybrid", "hybrid_sliding")
"""Layers that cache keys and values; a hybrid one has a recurrent state too."""
STATELESS_TYPES = ("mlp", "moe")
KEYLESS_TYPES = ("linear_attention", "mamba", "conv", *STATELESS_TYPES)
"""Layers without keys: all but stateless ones have a recurrent state."""
SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "head_dim"),
    *("num_attention_heads", "num_key_value_heads", "num_experts", "num_local_experts", "moe_intermediate_size"),
)
"""Sizes in `config.json` that the shapes, or for layers the number, of tensors bound."""
PLAIN_DTYPES = ("F64", "F32", "F16", "BF16")
"""Types of weights in safetensors files that are numbers and not codes of a quantisation."""
WINDOW_SETTING = {"llama": "sliding_window", "qwen2": "use_sliding_window"}
"""Model types whose dimensions `config.json` gives, and the setting without which all layers see all tokens."""


@cache
def refused() -> dict[str, dict[str, str]]:
    """Return model types and layer types of transformers that cannot be read, with reasons; `check.py` finds more."""
    return json.loads(Path(__file__).parents[1].joinpath("refused.json").read_text("utf-8"))


@dataclass(frozen=True)
class PlainConfig:
    """The dimensions of a model of text alone whose layers see all tokens, named as transformers names them."""

    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    head_dim: int
    dtype: torch.dtype


def plain_config(folder: Path) -> PlainConfig | None:
    """Return the dimensions that `config.json` gives, without importing transformers, which takes seconds.

    None if a default of the model type in transformers could change them: `AutoConfig` reads those.
    """
    config = read_json(folder / "config.json")
    try:
        window = config.get(WINDOW_SETTING[config["model_type"]])
        sizes = [config[field.name] for field in fields(PlainConfig)[:-2]]
        sizes.append(config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]))
        dtype = getattr(torch, config.get("dtype") or config["torch_dtype"])
    except (TypeError, AttributeError, LookupError, ArithmeticError):
        return None
    has_window = window is not None and window is not False
    if has_window or config.get("layer_types") or any(type(size) is not int or size < 1 for size in sizes):
        return None
    return PlainConfig(*sizes, dtype=dtype)


def text_config(config: Any) -> Any:
    """Return the part of a configuration that describes the language model; all of it for a text-only model."""
    return config if isinstance(config, PlainConfig) else config.get_text_config(decoder=True)


def check_code(folder: Path, path: str | None) -> None:
    """Raise UserError for a folder whose model class is code in the folder (`auto_map`), which is never run.

    If transformers has the type too, its own class is used.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = read_json(folder / "config.json")
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise UserError(
            f"model.path={path}: its type {config.get('model_type')!r} needs Python code from the model folder "
            "(auto_map), which kvbench does not run; allowed: types that transformers has, such as llama or qwen3"
        )


def check_sizes(folder: Path, where: str) -> None:
    """Raise MissingFile for a size in `config.json` that no tensor of the weights has, before anything is made of it.

    Raises UserError for quantised weights without the settings of their quantisation, which would be read as numbers.

    A billion layers would fill memory before they could be compared with the tensors.
    """
    from safetensors import SafetensorError, safe_open

    config, tensors, largest = read_json(folder / "config.json"), 0, 0
    integers: dict[str, str] = {}
    try:
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "pt") as content:
                slices = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
            shapes = [part.get_shape() for part in slices.values()]
            integers |= {name: part.get_dtype() for name, part in slices.items() if _is_coded(name, part)}
            tensors, largest = tensors + len(shapes), max([largest, *(size for shape in shapes for size in shape)])
    except (OSError, ValueError, SafetensorError):  # reported when the model is loaded
        return
    if integers and not quantization_settings(config):
        name, kind = next(iter(integers.items()))
        raise UserError(
            f"{where}: {len(integers)} weights are stored as codes, such as {name} as {kind}, but config.json has no "
            "quantization_config that says what they stand for: save the model again with it, or in a plain dtype"
        )
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    for name, size in ((name, part[name]) for part in parts for name in SIZES if name in part):
        allowed = tensors if name == "num_hidden_layers" else max(tensors, largest)
        is_none = name == "vocab_size" and size == 0  # transformers warns of the end token of such a model first
        if tensors and isinstance(size, (int, float)) and (size > allowed or is_none):
            raise MissingFile(
                f"{where}: config.json says {name}={size}, but the weights hold {tensors} tensors of sizes up to "
                f"{largest}: fetch or save the model again, weights and config.json together"
            )


def _is_coded(name: str, part: Any) -> bool:
    """Return whether a tensor of a safetensors file is a matrix of weights in a type that plain weights do not have."""
    return name.endswith("weight") and len(part.get_shape()) > 1 and part.get_dtype() not in PLAIN_DTYPES


def check_architecture(config: Any, where: str) -> None:
    """Raise UserError, naming the feature, for a model that kvbench cannot read. `where` begins the sentence."""
    from transformers.models.auto import modeling_auto as auto

    text, kind = text_config(config), config.model_type
    if config.is_encoder_decoder or text.is_encoder_decoder:
        raise UserError(
            f"{where}: {kind} is an encoder-decoder; allowed: decoders, such as llama or qwen3, and decoders of {kind} "
            "that were saved alone (is_encoder_decoder: false in config.json)"
        )
    if kind not in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and (
        text is config or kind not in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    ):
        raise UserError(f"{where}: transformers has no causal language model of the type {kind}")
    if reason := refused()["model_types"].get(text.model_type):
        raise UserError(f"{where}: {text.model_type} cannot be read: {reason}")
    if getattr(text, "alibi", False):
        raise UserError(f"{where}: attention adds a bias for the distance between tokens (alibi): allowed: alibi=false")
    if text.model_type == "big_bird" and text.attention_type != "original_full":
        raise UserError(
            f"{where}: queries see some blocks of keys alone (attention_type={text.attention_type}): allowed: "
            "attention_type=original_full"
        )
    layer_types = getattr(text, "layer_types", None) or ()
    for layer_type in dict.fromkeys(layer_types):
        if layer_type not in LAYER_TYPES + KEYLESS_TYPES:
            number = layer_types.count(layer_type)
            reason = refused()["layer_types"].get(layer_type, "which kvbench does not know")
            raise UserError(
                f"{where}: {number} of {len(layer_types)} layers of {kind} are of the type {layer_type}, {reason}; "
                f"allowed: {', '.join(LAYER_TYPES + KEYLESS_TYPES)}"
            )
    if layer_types and not any(kind in LAYER_TYPES for kind in layer_types):
        raise UserError(f"{where}: no layer of {kind} caches keys and values, so nothing can be evicted")
    if shared := getattr(text, "num_kv_shared_layers", None):
        raise UserError(
            f"{where}: the last {shared} layers of {kind} reuse keys and values of others "
            "(num_kv_shared_layers): allowed: models whose layers have their own"
        )


def cache_heads(config: Any) -> tuple[int, int]:
    """Heads that a layer caches, and the numbers of a key; one head for a layer with latents (MLA) and index keys."""
    text = text_config(config)
    if rank := getattr(text, "kv_lora_rank", None):
        return 1, rank + text.qk_rope_head_dim + (getattr(text, "index_head_dim", None) or 0)
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        kv_heads = 1
    return kv_heads, getattr(text, "head_dim", None) or text.hidden_size // heads


def stateful_layers(config: Any) -> tuple[int, ...]:
    """Return the layers with a recurrent state: linear attention, state spaces and convolutions."""
    kinds = getattr(text_config(config), "layer_types", None) or ()
    stateless = {"full_attention", "sliding_attention", *STATELESS_TYPES}
    return tuple(layer for layer, kind in enumerate(kinds) if kind not in stateless)


def sliding_windows(config: Any) -> dict[int, int | None]:
    """Return the sliding window of every layer that caches keys; None for one that attends to all tokens."""
    text = text_config(config)
    window = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    layer_types = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    if kinds := getattr(text, "attention_layers", None):  # GPT-Neo
        names = {"global": "full_attention", "local": "sliding_attention"}
        window, layer_types = text.window_size, [names[kind] for kind in kinds]
    return {
        layer: window if "sliding" in kind else None for layer, kind in enumerate(layer_types) if kind in LAYER_TYPES
    }
