"""Start from weights that exist: read a model folder, and give it more layers that change nothing at first."""

import hashlib
from pathlib import Path

import torch
from transformers import LlamaForCausalLM


def start_from(folder: Path, model: LlamaForCausalLM) -> str:
    """Fill `model` with the weights of `folder`; returns the SHA-256 of its weights.

    Where the model has more layers, those in its middle are new: their last projections are zero, so that the model
    answers exactly as before until training moves them.

    Raises:
        ValueError: the folder's model is no shallower version of `model`.
    """
    old = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    new_layers, old_layers = (len(each.model.layers) for each in (model, old))
    shapes = [{name: value.shape for name, value in each.model.layers[0].state_dict().items()} for each in (model, old)]
    if old_layers > new_layers or shapes[0] != shapes[1] or old.config.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"--start-from={folder}: {old_layers} layers of hidden size {old.config.hidden_size} over "
            f"{old.config.vocab_size} tokens do not fit --layers={new_layers} --hidden={model.config.hidden_size}; "
            "give its hidden size and at least its layers"
        )
    model.model.embed_tokens.load_state_dict(old.model.embed_tokens.state_dict())
    model.model.norm.load_state_dict(old.model.norm.state_dict())
    below = (old_layers + 1) // 2
    for place, layer in enumerate(model.model.layers):
        grown = below <= place < below + new_layers - old_layers
        if grown:
            for last in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                torch.nn.init.zeros_(layer.get_parameter(last))
        else:
            source = place if place < below else place - (new_layers - old_layers)
            layer.load_state_dict(old.model.layers[source].state_dict())
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
