"""A transformers model in memory as the model of cells: named by its content, run as a twin with the same tensors.

Nothing that loading does to a model, attention, products and output layer, happens to the one that was given.
"""

import copy
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from kvbench.models.loading.spec import TOKENIZER, Dtype, ModelSpec, content_hash
from kvbench.support.errors import UserError

_models: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The models by the folders of their configurations: a specification is a value, and is copied and written as text."""
_folders: WeakKeyDictionary[Any, list[TemporaryDirectory[str]]] = WeakKeyDictionary()
"""The folders of each model, which go when it goes."""


@dataclass(frozen=True)
class ModelInMemory(ModelSpec):
    """`path`: a folder with the configuration and the tokenizer. weights: the SHA-256 of the model's tensors."""

    left_out = (*ModelSpec.left_out, "weights")

    weights: str = ""

    @property
    def label(self) -> str:
        return self.name

    def folder(self) -> Path:
        assert self.path is not None
        return Path(self.path)

    def sha256(self) -> str:
        """Return a hash of configuration, tokenizer and weights: it differs from the hash of their folder."""
        files = content_hash(self.folder(), ("config.json", "generation_config.json", *TOKENIZER))
        return hashlib.sha256(f"{files} {self.weights}".encode()).hexdigest()

    def in_memory(self) -> Any:
        """Return a model of its own with these tensors and eager attention. Raises UserError if the model is gone."""
        model = _models.get(str(self.path))
        if model is None:
            raise UserError(f"model {self.name} is not in memory any more: make a Bench of it again")
        tensors = [*model.parameters(), *model.buffers()]
        twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
        twin.set_attn_implementation("eager")
        return twin


def folder_of(model: Any, tokenizer: Any) -> Path:
    """Return a folder with configuration and tokenizer, which is removed with the model.

    Raises UserError for a model that is quantised, spread over several devices, or of another number type.
    """
    kind, advice = type(model).__name__, "give its name or folder instead"
    devices, dtypes = {tensor.device for tensor in model.parameters()}, get_args(Dtype)[1:]
    if getattr(model, "hf_quantizer", None) is not None:
        raise UserError(f"model={kind}(...) is quantised: {advice}")
    if len(devices) > 1:
        raise UserError(f"model={kind}(...) is on {', '.join(sorted(map(str, devices)))}: {advice}")
    if _dtype(model) not in dtypes:
        raise UserError(f"model={kind}(...) is in {_dtype(model)}; allowed: {', '.join(dtypes)}")
    folder = TemporaryDirectory(prefix="kvbench-model-")
    config = copy.deepcopy(model.config)
    config.name_or_path = ""  # a place is no part of what a model is
    for part in (config, model.generation_config, tokenizer):
        part.save_pretrained(folder.name)
    _models[folder.name] = model
    _folders.setdefault(model, []).append(folder)
    return Path(folder.name)


def spec_of(folder: Path) -> ModelInMemory:
    """Return the specification of the model of a `folder_of`, with its tensors as they are now."""
    model = _models[str(folder)]
    name = str(model.config.name_or_path).rstrip("/") or type(model).__name__
    parts: dict[str, Any] = {"dtype": _dtype(model), "device": str(model.device), "weights": weights_sha256(model)}
    return ModelInMemory(name, str(folder), **parts)


def _dtype(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")


def weights_sha256(model: Any) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors; a tied one counts once."""
    digest, first_names = hashlib.sha256(), dict[int, str]()
    for name, tensor in _tensors(model):
        same = first_names.setdefault(id(tensor), name)
        digest.update(f"{name} {same} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if same == name:
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _tensors(model: Any) -> Iterable[tuple[str, Tensor]]:
    return [
        *sorted(model.named_parameters(remove_duplicate=False), key=lambda pair: pair[0]),
        *sorted(model.named_buffers(remove_duplicate=False), key=lambda pair: pair[0]),
    ]
