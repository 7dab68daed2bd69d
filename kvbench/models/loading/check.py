"""The check of a loaded model: a few tokens read by kvbench must give the logits of transformers' own attention.

A known configuration is not enough: a model class may not pass on what its attention needs, or call it twice.
"""

from collections import Counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvbench.cache.attention import AttentionParams, explicit
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import sliding_windows, text_config
from kvbench.models.prefill import Prefill
from kvbench.support.errors import UserError

TOKENS = 8
WHOLE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}
"""Largest |difference| over |logits| (Euclidean norms) when all tokens are read at once: only attention differs."""

IN_PARTS = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 8e-2, torch.bfloat16: 3e-1}
"""The same where matrix shapes differ too: half precision rounds differently, and a router may choose otherwise."""


class CheckingReader:
    """Wraps a reader: counts the calls of every layer and records their rules."""

    def __init__(self, reader: bridge.AttentionCache) -> None:
        self.reader = reader
        self.recurrent = reader.recurrent
        self.calls: Counter[int] = Counter()
        self.rules: dict[int, AttentionParams] = {}

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> Tensor:
        self.calls[layer] += 1
        self.rules[layer] = rule
        if keys.shape != values.shape:
            sizes = f"{keys.shape[-1]} numbers and values of {values.shape[-1]}"
            raise UserError(f"layer {layer} has keys of {sizes}: only caches of equal sizes are supported")
        return self.reader.attend(layer, queries, keys, values, rule)


def sample_tokens(model: Any) -> Int[Tensor, "tokens"]:
    """Return a few different tokens of any vocabulary, on the device of token ids."""
    embedded = model.get_input_embeddings().weight
    return (torch.arange(TOKENS, device=embedded.device) * 37 + 5) % len(embedded)


@torch.inference_mode()
def eager_logits(model: Any) -> Float[Tensor, "tokens vocabulary"]:
    """Return the logits of transformers' eager attention for the tokens. Call it before the bridge is attached.

    Raises UserError for a model that transformers cannot run, or whose logits are not finite.
    """
    ids = sample_tokens(model)[None]
    try:
        logits = model(input_ids=ids, use_cache=False).logits[0]
        if getattr(text_config(model.config), "is_decoder", True):
            first = logits[0]
        else:
            first = model(input_ids=torch.cat((ids[:, :-1], ids[:, :1]), dim=1), use_cache=False).logits[0, 0]
    except Exception as error:  # of any kind: it is transformers' own code
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"transformers cannot run the model in this dtype and on this device: {reason}") from error
    if not torch.allclose(first, logits[0], equal_nan=True):
        raise UserError(
            f"{type(model).__name__} is not causal: its first token sees later ones; allowed: decoders. A decoder of "
            "this type has is_decoder: true in config.json"
        )
    if not logits.isfinite().all():
        raise UserError(
            f"transformers' own logits of {TOKENS} tokens hold NaN or inf: the weights are broken, or too large for "
            f"{model.dtype}; use another model.dtype, or complete weights"
        )
    return logits


def check_model(engine: Engine, expected: Float[Tensor, "tokens vocabulary"]) -> None:
    """Read the tokens at once, then in two blocks, a question of two and a last one, and compare with `expected`.

    Raises UserError for another number of calls of attention, sliding window or logits.
    """
    ids = sample_tokens(engine.model)
    longest = engine.max_length and max(TOKENS, engine.max_length)
    logits = [_read(engine, ids, 0, Prefill(TOKENS, (), longest, explicit))]
    _compare(engine, logits, expected[-1:], WHOLE, "at once")
    if engine.rope is not None and engine.rope.border < TOKENS:
        return
    prompt, logits = Prefill(5, (), longest, engine.attend), []
    single = bridge.traits(engine.model).starts_anew
    for block in (ids[:5],) if single else (ids[:3], ids[3:5]):
        logits.append(_read(engine, block, prompt.num_tokens, prompt))
        prompt.finish_block(len(block))
    batch = RaggedBatch([prompt.freeze()], cells=1, max_new_tokens=3)
    for new in ids[5:].split(1) if single else (ids[5:7], ids[7:]):
        logits.append(_read(engine, new, batch.num_tokens + batch.num_new_tokens, batch))
        batch.finish(len(new))
    _compare(engine, logits, expected[[4, 5, 6, 7] if single else [2, 4, 6, 7]], IN_PARTS, "in parts")


def _read(
    engine: Engine, ids: Int[Tensor, "new"], first: int, reader: bridge.AttentionCache
) -> Float[Tensor, "vocabulary"]:
    """Logits of the last token, after a check of how attention was called."""
    checked, model, windows = CheckingReader(reader), engine.model, sliding_windows(engine.model.config)
    with torch.inference_mode():
        logits = bridge.forward(model, ids[None], first, checked)[0]
    reader.recurrent = checked.recurrent
    name = type(model).__name__
    if not checked.calls:
        raise UserError(f"{name} computes attention in its own code instead of transformers' attention interface")
    if checked.calls != Counter(windows.keys()):
        once = sum(calls == 1 for calls in checked.calls.values())
        raise UserError(
            f"{name} calls attention once in {once} of its {len(windows)} layers with keys, {checked.calls.total()} "
            "times in all; allowed: models that call it exactly once per layer"
        )
    for layer, window in windows.items():
        if (called := checked.rules[layer].sliding_window) != window:
            raise UserError(
                f"layer {layer} of {name} asks attention for a sliding window of {called}, but its configuration "
                f"says {window}: correct config.json, kvbench cannot know which one it was trained with"
            )
    return logits


def _compare(
    engine: Engine, logits: list[Tensor], expected: Tensor, tolerances: dict[torch.dtype, float], how: str
) -> None:
    computed, reference = torch.stack(logits).double().cpu(), expected.double().cpu()
    difference, tolerance = float((computed - reference).norm() / reference.norm()), tolerances[engine.model.dtype]
    if not difference <= tolerance:
        raise UserError(
            f"{type(engine.model).__name__} does not match transformers: the logits of {TOKENS} tokens {how} differ "
            f"from eager attention by {difference:.2g} of their size; rounding explains {tolerance:g}"
        )
