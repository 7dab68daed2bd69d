"""Bytes that tensors without data (`meta`) would hold: what sizes that fit no machine of ours would take.

    with LiveBytes() as memory:
        ...
    memory.peak, memory.live

Numbers that the host reads are made up: a flag is true, a mask marks as many pairs as `kept` says, and the pairs of a
layer are divided unevenly over its heads.
"""

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """The storages of tensors on `meta` that are alive, and the most bytes that were at a time since `reset`."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.kept = 0
        self._references: Counter[int] = Counter()

    def reset(self) -> None:
        """Begin a new peak."""
        self.peak = self.live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self._made_up(func._schema.name.removeprefix("aten::"), args, kwargs or {})
        if result is None:
            result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
                self._hold(tensor)
        return result

    def _hold(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if not self._references[key]:
            self.live += size
            self.peak = max(self.peak, self.live)
        self._references[key] += 1
        weakref.finalize(tensor, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._references[key] -= 1
        if not self._references[key]:
            self.live -= size

    def _made_up(self, name: str, args: Any, kwargs: Any) -> Any:
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is None or tensor.device.type != "meta":
            return None
        if name in ("_local_scalar_dense", "item", "is_nonzero"):
            return True
        if name in ("nonzero", "nonzero_numpy"):
            places = torch.empty(self.kept, tensor.dim(), dtype=torch.long, device="meta")
            return places if name == "nonzero" else list(places.unbind(1))
        if name == "bincount":
            return _divided(len(tensor), kwargs.get("minlength") or args[2])
        if name in ("to", "_to_copy") and kwargs.get("device") == torch.device("cpu"):
            counts = tensor.dim() == 1 and tensor.dtype == torch.long
            return _divided(self.kept, len(tensor)) if counts else torch.ones(tensor.shape, dtype=tensor.dtype)
        if name == "nonzero_static":
            return torch.empty(kwargs["size"], tensor.dim(), dtype=torch.long, device="meta")
        return None


def _divided(pairs: int, heads: int) -> torch.Tensor:
    """Unevenly, the last head most."""
    uneven = torch.arange(1, heads + 1) * pairs * 2 // (heads * (heads + 1))
    uneven[-1] += pairs - int(uneven.sum())
    return uneven
