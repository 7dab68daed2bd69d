"""A whole model of transformers: read, scored, cut and decoded with the kernels, against the same in plain PyTorch."""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_check.checks import Check
from kvbench.cache.kernels.choice import Kernels
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.obcache import OBCacheJoint
from kvbench.models import bridge
from kvbench.models.decode.decoding import decoding_of
from kvbench.models.engine import Engine


def model_checks(device: torch.device, small: bool) -> Iterator[Check]:
    """A small random Llama in float32: logits after a question and a few tokens, and which pairs were kept."""
    model, tokens = _llama(device), 90 if small else 2000
    ids = torch.randint(0, 500, (tokens,), generator=torch.Generator().manual_seed(2))
    (kept, expected), (kept_fast, logits) = (_run(model, ids, kernels) for kernels in ("torch", "triton"))
    alike = all(torch.equal(mask, other) for mask, other in zip(kept, kept_fast, strict=True))
    yield Check("a model's kept pairs: positions that differ", float(not alike), 0.0)
    error = ((logits - expected).abs().max() / expected.abs().max()).item()
    yield Check("a model's logits over what it kept", error, 1e-4)


def _llama(device: torch.device) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=256,
        intermediate_size=300,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        initializer_range=0.1,
    )
    model: Any = LlamaForCausalLM(config)
    model = model.to(device).eval()
    bridge.attach(model)
    return model


def _run(model: Any, ids: torch.Tensor, kernels: Kernels) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Positions kept in every layer, and the last logits of two cells, one of which has ragged heads."""
    engine = Engine(model, max_batch=2, kernels=kernels)
    engine.decoding = decoding_of(engine)
    prefilled = engine.prefill(ids, {16})
    policy = Policy("h2o_obcache", window=16, recent=16)
    caches = [Eviction(policy, OBCacheJoint(), TokenBudget(budget))(prefilled.cache) for budget in (30, 47)]
    kept = [layer.positions for cache in caches for layer in cache.layers]
    tile = engine.batch(caches, 8)
    question = torch.tensor([[5, 6, 7]]).expand(2, -1)
    engine.read(tile, question)
    return kept, engine.read(tile, question[:, :1])
