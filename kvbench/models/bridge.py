"""The one place where transformers calls kvbench, and the only file that depends on its version.

transformers lets a model's attention be replaced by a registered function (`AttentionInterface`). Ours hands queries,
keys and values of exactly the new tokens, rotated already, to the reader of the current forward pass. No Cache object,
no mask and no hook take part: no mask function is registered under our name, so every layer gets `attention_mask=None`.

The reader travels in a context variable because not every model class passes unknown keyword arguments down to its
attention. Written for transformers 5.17 and later.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.attention import Rule
from kvbench.models.loading.experts import batch_of, separate_cells
from kvbench.support.errors import UserError

NAME = "kvbench"  # must not contain "sdpa", "flash" or "/": transformers chooses code paths by such substrings

KNOWN = ("scaling", "softcap", "s_aux", "sliding_window", "is_causal", "dropout", "position_ids", "use_cache")
"""Options that models pass along: the first five say how to attend, the rest says nothing about it."""


@runtime_checkable
class Reader(Protocol):
    """Whoever owns the cache of a forward pass: takes the new tokens of a layer, returns their attention output."""

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "cells heads new head_dim"],
        keys: Float[Tensor, "cells kv_heads new head_dim"],
        values: Float[Tensor, "cells kv_heads new head_dim"],
        rule: Rule,
    ) -> Float[Tensor, "cells heads new head_dim"]:
        """Append keys and values to the cache of `layer` and let the queries attend to all of it."""
        ...


_reader: ContextVar[Reader | None] = ContextVar("kvbench_reader", default=None)


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The registered function. Raises ValueError for any attention feature it would otherwise drop in silence."""
    reader = _reader.get()
    assert reader is not None, "attention called outside bridge.forward"
    unknown = [
        name for name, value in options.items() if name not in KNOWN and value is not None and value is not False
    ]
    if attention_mask is not None:
        unknown.append("attention_mask")
    if unknown or options.get("is_causal") is False:
        what = ", ".join(unknown) or "attention that is not causal"
        raise UserError(f"{type(module).__name__} asks for {what}, which is not supported")
    rule = Rule(options["scaling"], options.get("softcap"), options.get("s_aux"), options.get("sliding_window"))
    output = reader.attend(module.layer_idx, query, key, value, rule)
    return output.transpose(1, 2).contiguous(), None


def attach(model: Any) -> None:
    """Make `model` call us for attention, and its experts see one cell at a time."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    model.set_attn_implementation(NAME)
    separate_cells(model)


def forward(
    model: Any, ids: Int[Tensor, "cells new"], first: int | Sequence[int], reader: Reader
) -> Float[Tensor, "cells vocabulary"]:
    """Logits of the last of the new tokens, which stand at positions first, first + 1, ... in every cell.

    `first` is one number for all cells, or one for each.
    """
    return logits(model, ids, first, reader, last=1)[:, -1]


def logits(
    model: Any, ids: Int[Tensor, "cells new"], first: int | Sequence[int], reader: Reader, last: int
) -> Float[Tensor, "cells last vocabulary"]:
    """`forward`, with the logits of the `last` newest tokens."""
    start = torch.tensor(first, device=ids.device).view(-1, 1)
    positions = (start + torch.arange(ids.shape[1], device=ids.device)).expand(ids.shape[0], -1)
    token = _reader.set(reader)
    try:
        with batch_of(ids.shape[0]):
            output = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=last)
    finally:
        _reader.reset(token)
    return output.logits


def frequencies(model: Any) -> list[Float[Tensor, "half"]]:
    """The tables of rotary frequencies that a model holds, those of before any scaling left out."""
    return [table for name, table in model.named_buffers() if name.endswith("inv_freq") and "original" not in name]
