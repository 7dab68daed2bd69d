"""What must hold for a tiny model of a type, each against transformers itself."""

from dataclasses import dataclass
from typing import Any

import torch

from kvbench.eviction.allocation.heads import MixHeads
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import check_architecture, text_config
from kvbench.models.loading.check import check_model, eager_logits
from kvbench.support.errors import UserError
from scripts.model_types.tiny import VOCABULARY, Unbuildable, config_of, model_of
from tests.models.masked import masked_forward

PROMPT, QUESTION, STEPS, BLOCK = 61, 5, 6, 13
LIMIT = 1e-4
"""Largest difference of a logit, in standard deviations of the logits; float32."""
LIMITS = {"nemotron_h": 1e-3, "zamba2": 1e-3}
"""transformers reads a single token by another formula than several; its own results differ by 3e-4 and 7e-4."""
WINDOW = 8
POLICY = Policy("ada_snapkv", window=WINDOW, recent=WINDOW, heads=MixHeads(alpha=0.2))


@dataclass(frozen=True)
class Outcome:
    """What came of a type. reason: why it is refused; empty if it is read.

    keep_all, evicted: the largest differences of a logit, in standard deviations. layers: their kinds, and how many.
    """

    model_type: str
    reason: str = ""
    layers: str = ""
    keep_all: float = 0.0
    evicted: float = 0.0


def outcome_of(model_type: str) -> Outcome:
    """Check a type. Raises AssertionError if it is read differently from transformers; else it is read, or refused."""
    try:
        config = config_of(model_type)
        check_architecture(config, model_type)
        model = model_of(config)
        expected = eager_logits(model)
        ids = torch.randint(3, VOCABULARY, (PROMPT + QUESTION + STEPS,), generator=torch.Generator().manual_seed(3))
        whole, greedy = _logits(model, ids), _greedy(model, ids[:PROMPT])
        bridge.attach(model)
        check_model(Engine(model, max_length=512), expected)
    except (UserError, Unbuildable) as error:
        return Outcome(model_type, " ".join(str(error).removeprefix(f"{model_type}: ").split()))
    engine = Engine(model, prefill_chunk=BLOCK, max_batch=2, max_length=512)
    prefilled = engine.prefill(ids[:PROMPT], {WINDOW})
    scale = whole.std()
    keep_all = _answered(engine, prefilled.cache, ids)
    answered = (
        torch.cat((prefilled.logits[None], keep_all)) - whole[[PROMPT - 1, *range(PROMPT + QUESTION - 1, len(ids))]]
    )
    batch = RaggedBatch([prefilled.cache], engine.max_batch, STEPS)
    (answer,) = engine.generate(prefilled, batch, ())
    assert list(answer.ids) == greedy, f"{model_type}: greedy {answer.ids}, transformers {greedy}"
    cache, eviction = prefilled.cache, Eviction(POLICY, Attention(), parse_budget("0.4"))
    decision = eviction.decide(cache)
    evicted = _answered(engine, eviction.evict(cache, decision), ids)
    kept = dict(zip((layer.index for layer in cache.evictable), decision.kept, strict=True))
    masks = [kept.get(layer) for layer in range(cache.layers[-1].index + 1)]
    masked = masked_forward(model, ids, PROMPT, masks)[PROMPT + QUESTION - 1 :]
    assert (masked - whole[PROMPT + QUESTION - 1 :]).abs().max() > 100 * LIMIT * scale, "the eviction must matter"
    oracle = float((evicted - masked).abs().max() / scale)
    latents = ", latents" if getattr(text_config(config), "kv_lora_rank", None) else ""
    result = Outcome(model_type, "", _layers(cache) + latents, float(answered.abs().max() / scale), oracle)
    limit = LIMITS.get(model_type, LIMIT)
    assert max(result.keep_all, result.evicted) <= limit, result
    return result


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """transformers' own logits [tokens, vocabulary] of one pass without a cache."""
    with torch.inference_mode():
        return model(input_ids=ids[None], use_cache=False).logits[0]


def _greedy(model: Any, prompt: torch.Tensor) -> list[int]:
    """The tokens that transformers chooses, each from a pass over all tokens before it."""
    for _ in range(STEPS):
        prompt = torch.cat((prompt, _logits(model, prompt)[-1:].argmax(-1)))
    return prompt[-STEPS:].tolist()


def _answered(engine: Engine, cache: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits after a question of several tokens, then after each token of an answer that is given."""
    batch = RaggedBatch([cache], engine.max_batch, QUESTION + STEPS)
    parts = (ids[PROMPT : PROMPT + QUESTION], *ids[PROMPT + QUESTION :].split(1))
    return torch.stack([engine.read(batch, part.expand(engine.max_batch, -1))[0] for part in parts])


def _layers(cache: Any) -> str:
    recurrent = 0 if cache.recurrent is None else len(cache.recurrent.layers)
    kinds = {"evicted": len(cache.evictable), "sliding": cache.local_layers, "recurrent": recurrent}
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
