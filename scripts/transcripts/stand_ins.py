"""What official code imports and asks of a model, where only its prompts count."""

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch


class Anything(types.ModuleType):
    """A module of which every name can be imported and called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


def empty(*names: str) -> None:
    """Modules that official code imports and that compute nothing here."""
    for name in names:
        module = Anything(name)
        module.__path__ = []  # type: ignore[attr-defined]
        module.__spec__ = ModuleSpec(name, None)
        sys.modules[name] = module


def load(path: Path, name: str) -> Any:
    """A module from its file, under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def stay_on_cpu() -> None:
    """Tensors that are sent to a GPU stay where they are."""
    moved = torch.Tensor.to

    def to(tensor: Any, *arguments: Any, **options: Any) -> Any:
        device = arguments[0] if arguments else options.get("device")
        return tensor if str(device).startswith("cuda") else moved(tensor, *arguments, **options)

    torch.Tensor.to = to  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign, assignment]


class Recorder:
    """A model that records what `generate` is asked and answers with one token."""

    device = "cpu"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def generate(self, input_ids: Any, **options: Any) -> Any:
        self.asked.append({"ids": input_ids[0].tolist(), **options})
        return torch.cat([input_ids, input_ids[:, :1]], dim=1)
