"""Model classes of transformers that write attention out instead of calling its attention interface.

They multiply queries by keys, mask, take the softmax and multiply by values. While such a module runs, the first
product is zeros and the second is what the reader makes of the queries, keys and values: masks in between are without
effect, and any other step there would show in the check of a loaded model (`loading/check.py`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CLASSES = {
    **{"big_bird": "BigBirdSelfAttention", "codegen": "CodeGenAttention", "falcon": "FalconAttention"},
    **{"git": "GitSelfAttention", "gpt_neo": "GPTNeoSelfAttention", "gpt_neox_japanese": "GPTNeoXJapaneseAttention"},
    **{"gptj": "GPTJAttention", "megatron_bert": "MegatronBertSelfAttention", "mvp": "MvpAttention"},
    **{"openai": "Attention", "rembert": "RemBertSelfAttention", "roformer": "RoFormerSelfAttention"},
    **{"trocr": "TrOCRAttention", "xglm": "XGLMAttention", "xlm": "MultiHeadAttention"},
}
"""The class that attends, by the package of transformers that defines it."""
SCALED = ("gpt_neo", "mvp", "trocr", "xglm", "xlm")
"""Packages whose queries are scaled before they are multiplied, or not at all."""
PRODUCTS = (torch.matmul, torch.bmm, torch.baddbmm, Tensor.matmul, Tensor.__matmul__)

Attend = Callable[..., tuple[Tensor, Any]]


def own_attention(model: Any) -> list[Any]:
    """The modules of `model` that write attention out, in the order of its layers."""
    return [module for module in model.modules() if type(module).__name__ == CLASSES.get(_package(module))]


def _package(module: Any) -> str:
    return type(module).__module__.rpartition(".")[0].rpartition(".")[2]


def layer_of(module: Any, position: int) -> int:
    """The layer of a module of `own_attention`; `position`: its place there."""
    numbers = (getattr(module, name, None) for name in ("layer_idx", "layer_id"))
    return next((number for number in numbers if number is not None), position)


def with_attention(module: Any, attend: Attend) -> Callable[..., Any]:
    """`module.forward` with the attention `attend`, a function as transformers' attention interface wants it."""
    forward = module.forward

    def attending(*arrays: Any, **named: Any) -> Any:
        if _package(module) == "falcon":  # adds its mask without asking whether there is one
            named["attention_mask"] = torch.zeros((), device=arrays[0].device)
        with _Products(module, attend):
            return forward(*arrays, **named)

    return attending


class _Products(TorchFunctionMode):
    """Replaces the two products of an attention module."""

    def __init__(self, module: Any, attend: Attend) -> None:
        super().__init__()
        self.module, self.attend = module, attend
        self.pair: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = args[1:3] if func is torch.baddbmm else args
        if func not in PRODUCTS or operands[1].ndim < 3:  # weights have two dimensions
            return func(*args, **(kwargs or {}))
        left, right = operands
        if self.pair is None:
            self.pair = left, right.mT
            return left.new_zeros(*left.shape[:-1], right.shape[-1])
        queries, keys = (rows.to(right.dtype) for rows in self.pair)  # some are widened to float32 for the product
        module = self.module
        window = module.config.window_size if getattr(module, "attention_type", None) == "local" else None
        scaling = 1.0 if _package(module) in SCALED else queries.shape[-1] ** -0.5
        output, _ = self.attend(module, queries, keys, right, None, scaling=scaling, sliding_window=window)
        return output.transpose(1, 2).reshape(*left.shape[:-1], -1)
