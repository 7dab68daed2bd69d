"""Models with recurrent layers: only keys and values are evicted, and the states of cells, prompts and passes part."""

import pytest
import torch
from torch import Tensor

from kvbench.cache.kv_cache import compact
from kvbench.cache.recurrent import RecurrentState
from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.kvzip import CONTINUE, REPEAT
from kvbench.eviction.scores.score import ContextRepetition
from kvbench.extras.probes.next_step import next_step
from kvbench.extras.stores.quantized import pack_cache
from kvbench.extras.stores.quantized_batch import QuantizedBatch
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import sliding_windows, stateful_layers
from kvbench.models.repeat import RepeatPass
from tests.models.families import RECURRENT, engine_of, tiny
from tests.models.masked import masked_forward

PROMPT = torch.randint(3, 97, (40,), generator=torch.Generator().manual_seed(3))
ANSWER = torch.tensor([4, 9, 33, 7, 61, 8])
SNAPKV = Policy("snapkv", window=8, recent=8)
SAME_LAYERS = ("bamba", "granite hybrid")
"""Families whose recurrent layers are the Mamba-2 of others."""
TOVA = Eviction(Policy("tova_obcache", window=1, recent=0), Attention(), TokenBudget(1000))


def difference(logits: Tensor, expected: Tensor) -> float:
    return float((logits - expected).norm() / expected.norm())


def limit(family: str) -> float:
    """In float32. A single token through transformers' Nemotron-H differs by 4e-4 from the same token among others."""
    return 2e-3 if family == "nemotron_h" else 1e-4


def tensors(state: RecurrentState | None) -> list[Tensor]:
    assert state is not None
    parts = [part for layer in state.layers.values() for part in vars(layer).values() if isinstance(part, dict)]
    return [value.clone() for part in parts for value in part.values() if isinstance(value, Tensor)]


@pytest.mark.parametrize("family", RECURRENT)
def test_an_evicted_cache_is_a_masked_forward(family: str) -> None:
    """The oracle: one pass over prompt and answer, whose attention does not see evicted pairs; states see all tokens.

    Masks differ by cell, layer and head. A question of two tokens, then single ones. Layers are counted by what they
    hold.
    """
    engine, generator = engine_of(family), torch.Generator().manual_seed(5)
    full, config = engine.prefill(PROMPT).cache, engine.model.config
    assert [layer.index for layer in full.layers] == list(sliding_windows(config))
    assert full.recurrent is not None and full.recurrent.cells == 1
    assert tuple(full.recurrent.layers) == stateful_layers(config)
    assert full.recurrent.bytes_held == sum(tensor.nbytes for tensor in tensors(full.recurrent))
    layers, heads = len(full.layers), full.layers[0].cache_heads
    masks = [tuple(torch.rand(layers, heads, len(PROMPT), generator=generator) < 0.5) for _ in range(2)]
    batch = RaggedBatch([compact(full, kept) for kept in masks], engine.max_batch, len(ANSWER))
    logits = [engine.read(batch, part.expand(engine.max_batch, -1)) for part in (ANSWER[:2], *ANSWER[2:].split(1))]
    for cell, kept in enumerate(masks):
        by_layer = dict(zip((layer.index for layer in full.layers), kept, strict=True))
        places = [by_layer.get(layer) for layer in range(max(by_layer) + 1)]
        expected = masked_forward(engine.model, torch.cat((PROMPT, ANSWER)), len(PROMPT), places)
        assert difference(torch.stack([step[cell] for step in logits]), expected[len(PROMPT) + 1 :]) < limit(family)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", RECURRENT)
def test_states_are_planned_as_large_as_they_become(family: str, dtype: torch.dtype) -> None:
    """Those of the prompt, of three cells, and of a batch, whose rows are the tile, or more on a CPU."""
    model = tiny(family, dtype)
    planned = bridge.state_bytes(model.config, dtype)
    bridge.attach(model)
    engine = Engine(model, prefill_chunk=13, max_batch=5, max_length=512)
    full = engine.prefill(PROMPT).cache
    batch = RaggedBatch([full] * 3, engine.max_batch, 2)
    joined = batch.recurrent
    engine.read(batch, torch.full((engine.max_batch, 1), 4))
    held = [state.bytes_held for state in (full.recurrent, joined, batch.recurrent) if state is not None]
    assert engine.batch_invariance is not None
    rows = engine.batch_invariance.rows(5, 5, 1)
    assert planned > 0 and held == [planned, 3 * planned, rows * planned]


@pytest.mark.parametrize(
    "family", ["lfm2", "bamba", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3_next", "falcon_h1"))]
)
def test_a_cell_answers_as_if_alone_and_changes_nothing(family: str) -> None:
    engine = engine_of(family, max_batch=5)
    prefilled = engine.prefill(PROMPT, {8})
    caches = [Eviction(SNAPKV, Attention(), parse_budget(share))(prefilled.cache) for share in ("0.2", "0.5", "1.0")]
    before, question = tensors(prefilled.cache.recurrent), torch.tensor([5, 6, 7])

    def answers(*cells: int) -> list[tuple[tuple[int, ...], float]]:
        batch = RaggedBatch([caches[cell] for cell in cells], engine.max_batch, 8)
        return [(each.ids, each.top2_margin) for each in engine.generate(prefilled, batch, (), question=question)]

    together = answers(0, 1, 2)
    assert answers(2, 0) == [together[2], together[0]] and answers(1) == [together[1]]
    packed = QuantizedBatch([pack_cache(cache, "int8") for cache in caches], engine.max_batch, 8)
    assert len(engine.generate(prefilled, packed, (), question=question)) == 3
    next_step(engine, prefilled, question.tolist())
    engine.repeat(
        prefilled.cache,
        [RepeatPass(0, 0, 30, tuple(range(3, 40)))],
        ContextRepetition(30, 8, REPEAT, CONTINUE, softmax=True),
    )
    assert all(torch.equal(was, now) for was, now in zip(before, tensors(prefilled.cache.recurrent), strict=True))


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name in SAME_LAYERS else ()) for name in RECURRENT]
)
def test_growing_caches_carry_their_state_on(family: str) -> None:
    """Blocks, then single tokens in a batch of another size, without an eviction: the logits of one forward pass."""
    model = tiny(family)
    ids = torch.cat((PROMPT, ANSWER))
    with torch.inference_mode():
        expected = model(ids[None], use_cache=False).logits[0]
    bridge.attach(model)
    engine, evictor = Engine(model, max_batch=3, max_length=512), IncrementalEviction(TOVA, 1000)
    prefilled = engine.prefill_evicting(PROMPT, evictor, 13)
    assert difference(prefilled.logits, expected[len(PROMPT) - 1]) < limit(family)
    caches = [engine.evicting_cache(evictor, 1, prefilled.cache) for _ in range(2)]
    for part in ANSWER.split(3):  # every batch goes on from the caches of the last one
        batch = EvictingBatch(caches, engine.max_batch, len(part))
        for token in part:
            logits = engine.read(batch, token.expand(engine.max_batch, 1))
        batch.return_layers()
    assert difference(logits[:2], expected[-1].expand(2, -1)) < limit(family)
    losses = torch.nn.functional.cross_entropy(expected[:-1], ids[1:], reduction="none")
    assert difference(engine.nll(ids, [engine.evicting_cache(evictor, None)], 7)[0], losses) < limit(family)
