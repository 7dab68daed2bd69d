"""What a plan says of memory and of prompts that cannot be shared, known before any weight is loaded."""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from kvbench.models.loading.architecture import sliding_windows, text_config
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.loading.weights import LOCAL, shape_config
from kvbench.run.memory import needed
from kvbench.run.plan import PrefillGroup
from kvbench.tasks.efficiency import Efficiency
from kvbench.tasks.likelihood import Likelihood

UNIT = 2**20


def memory(group: PrefillGroup) -> str | None:
    """The full cache of a prompt and what the largest tile of its cells holds beside it; None where a task does not
    tell how long prompts are, for texts, whose caches never hold all, and for what is timed in batches.
    """
    tokens, room = group.task.context_length, group.task.max_new_tokens
    if tokens is None or isinstance(group.task, (Likelihood, Efficiency)):
        return None
    full, copies = _full_bytes(group.model, tokens)
    each = sorted((needed(cell, tokens, room, full // tokens, copies) for cell in group.cells), reverse=True)
    most = group.model.tile
    tile = sum(each[:most])
    cells = "1 cell" if len(each) == 1 else f"{min(len(each), most)} cells that hold most"
    read = "the full cache" if group.cells[0].schedule.prefill_block is None else "a full cache, which is never held,"
    return (
        f"memory: {read} {full / UNIT:.1f} MiB; a tile of the {cells} at most {tile / UNIT:.1f} MiB, "
        f"beside the model and what a pass needs"
    )


def unshared(groups: Iterable[PrefillGroup]) -> str | None:
    """What it costs that some cells read their prompts alone; None where none does."""
    alone = [group for group in groups if _alone(group)]
    if not alone:
        return None
    read: dict[tuple[str, str], list[int]] = {}
    for group in alone:
        tokens = group.task.context_length
        lengths = read.setdefault((group.model.label, repr(group.task)), [])
        lengths.append(len(group.units) * (tokens or 0))
    all_tokens, once = sum(map(sum, read.values())), sum(map(max, read.values()))
    why = f"{len(alone)} cells cut while they read and share no prompt"
    return f"{why}: they read at most {all_tokens} tokens, which would be {once} if they shared" if all_tokens else why


def _alone(group: PrefillGroup) -> bool:
    return group.cells[0].schedule.prefill_block is not None and not isinstance(group.task, Likelihood)


@lru_cache
def _full_bytes(spec: ModelSpec, tokens: int) -> tuple[int, int]:
    """Bytes of a cache of all tokens, those out of a layer's sliding window left out, and query heads a KV head."""
    import torch
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(spec.folder(), **LOCAL) if spec.shape is None else shape_config(spec.shape)
    text = text_config(config)
    heads = text.num_attention_heads
    stored = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    dtype = getattr(torch, spec.dtype) if spec.dtype != "auto" else getattr(config, "dtype", None) or torch.float32
    seen = sum(tokens if window is None else min(window, tokens) for window in sliding_windows(config))
    return seen * stored * 2 * head_dim * dtype.itemsize, math.ceil(heads / stored)
