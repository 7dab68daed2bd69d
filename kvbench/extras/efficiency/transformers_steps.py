"""A model's answer by transformers' own cache and attention: the full cache without kvbench."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kvbench.models.bridge import configs, own_attention, replaced, traits


@contextmanager
def detached(model: Any) -> Iterator[None]:
    """Give an attached model transformers' own attention while the block runs: SDPA where the class has it."""
    assert not own_attention(model), "its products are replaced, not its attention"
    before = [(config, config._attn_implementation) for config in configs(model)]
    attributes = [(part, name, vars(part).pop(name, None)) for part, name, _ in replaced(model)]
    try:
        for config, _ in before:
            config._attn_implementation = "sdpa" if model._supports_sdpa else "eager"
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation
        for part, name, attribute in attributes:
            if attribute is not None:
                setattr(part, name, attribute)


@torch.inference_mode()
def own_steps(
    model: Any, ids: Int[Tensor, "tokens"], sequences: int, new_tokens: int, mark: Callable[[], None]
) -> list[int] | None:
    """Return the most likely tokens after a prompt, by transformers' own cache and attention; `mark` is called before
    the first step and after each. All sequences read the same prompt, which is read once. None for a model that has a
    recurrent state, numbers positions itself or writes its attention out.
    """
    from transformers import DynamicCache

    if own_attention(model) or traits(model).stateful or traits(model).counts_positions:
        return None
    cache, inputs, tokens = DynamicCache(config=model.config), ids[None], list[Tensor]()
    with detached(model):
        for _ in range(new_tokens):
            logits = model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            if not tokens:
                cache.batch_repeat_interleave(sequences)
                logits = logits.expand(sequences, -1)
            tokens.append(logits.argmax(dim=-1))
            inputs = tokens[-1][:, None]
            mark()
    return [int(token[0]) for token in tokens]
