"""Begin with weights that exist: more layers, heads, neurons and tokens that change nothing at first."""

import hashlib
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file

from .network import TrainingLlama

LAST = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""The matrices that write into the residual stream: zero where a layer, a head or a neuron is new."""


def start_from(folder: Path, model: TrainingLlama, added: Collection[int] = ()) -> str:
    """Fill `model` with the weights of `folder`; returns the SHA-256 of its weights.

    What is new is random but for its last matrices, which are zero, so that the model answers as before until training
    moves them. New layers are those that `added` names, else spread among the old ones; new heads come behind them,
    each KV head with its query heads; the rows of new tokens are drawn around the mean of the old.

    Raises:
        ValueError: the folder's model is not smaller in every size, or has another hidden size.
    """
    file = folder / "model.safetensors"
    old, new = load_file(file), model.state_dict()
    depth = 1 + max(int(name.split(".")[2]) for name in old if name.startswith("model.layers."))
    first = {name: tensor for name, tensor in old.items() if name.startswith("model.layers.0.")}
    fits = all(
        tensor.dim() == new[name].dim() and all(a <= b for a, b in zip(tensor.shape, new[name].shape, strict=True))
        for name, tensor in first.items()
    )
    hidden = old["model.norm.weight"].shape[0]
    if not fits or depth > model.shape.layers or hidden != model.shape.hidden:
        raise ValueError(
            f"--start-from={folder}: {depth} layers of hidden size {hidden} do not fit into {model.shape}; give the "
            "same hidden size, and at least its layers, heads and inner size"
        )
    embedding, grown = old["model.embed_tokens.weight"].float(), new["model.embed_tokens.weight"]
    grown[: len(embedding)] = embedding
    grown[len(embedding) :] = embedding.mean(0) + 0.7 * embedding.std(0) * torch.randn_like(grown[len(embedding) :])
    new["model.norm.weight"].copy_(old["model.norm.weight"])
    for place, source in enumerate(sources(depth, model.shape.layers, added)):
        for name, tensor in new.items():
            part = name.removeprefix(f"model.layers.{place}.")
            if part == name:
                continue
            if part in LAST:
                tensor.zero_()
            if source is not None:
                taken = old[f"model.layers.{source}.{part}"]
                tensor[tuple(slice(size) for size in taken.shape)] = taken
    model.load_state_dict(new)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def sources(old: int, new: int, added: Collection[int] = ()) -> list[int | None]:
    """The old layer that each of the new ones is, None for those that are new: `added`, else spread evenly.

    Raises:
        ValueError: `added` are not new - old places.
    """
    added = added or {round((place + 1) * new / (new - old + 1)) - 1 for place in range(new - old)}
    if len(set(added) & set(range(new))) != new - old:
        raise ValueError(f"{new - old} layers are new, of {new}; not {sorted(added)}")
    remaining = iter(range(old))
    return [None if place in added else next(remaining) for place in range(new)]
