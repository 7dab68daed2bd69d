"""Reading and generating: equal to transformers when everything stays, equal to a masked forward when it does not."""

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.cache.attention import AttentionParams, observe
from kvbench.cache.kv_cache import KVCache, LayerCache
from kvbench.eviction.budget import TokenBudget, parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.recency import Recency
from kvbench.models import bridge
from kvbench.models.decode import batch as batch_module
from kvbench.models.decode.batch import RaggedBatch, RaggedLayer
from kvbench.models.engine import Engine, Generation, Prefilled
from kvbench.models.prefill import MANY
from tests.allocations import stored_bytes
from tests.models import families
from tests.models.conftest import PROMPT, make_engine, tiny_llama
from tests.models.masked import cut, masked_forward, random_masks


def answers(engine: Engine, prefilled: Prefilled, caches: Sequence[KVCache], room: int, *stop: int) -> list[Generation]:
    """What the cells answer as one tile."""
    return engine.generate(prefilled, RaggedBatch(caches, engine.max_batch, room), stop)


def same(answer: Generation) -> Generation:
    """An answer without its time."""
    return replace(answer, seconds=0.0)


@pytest.mark.parametrize("block", [1, 7, 60])
def test_block_size_changes_nothing(block: int) -> None:
    """Cache, evidence and logits are those of a prompt read whole."""
    whole = make_engine(torch.float64).prefill(PROMPT, windows={9})
    blocks = make_engine(torch.float64, prefill_chunk=block).prefill(PROMPT, windows={9})
    assert torch.allclose(whole.logits, blocks.logits, atol=1e-10)
    for left, right in zip(whole.cache.layers, blocks.cache.layers, strict=True):
        for name in ("keys", "values"):
            assert torch.allclose(getattr(left, name), getattr(right, name), atol=1e-10)
        for name in ("queries", "outputs", "lse"):
            assert torch.allclose(getattr(left.windows[0], name), getattr(right.windows[0], name), atol=1e-5), name


@pytest.mark.parametrize("heads", [2, 6], ids=["kv_heads", "query_heads"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gpt_oss", "qwen2 window"])
def test_compacted_decode_is_a_masked_forward(family: str, heads: int) -> None:
    """The oracle: a forward over the whole sequence with a mask of its own for every head of every evicted layer."""
    dtype, most = (torch.float32, 1e-4) if family == "gpt_oss" else (torch.float64, 1e-10)  # torch's own limit
    engine, prompt = families.engine_of(family, dtype), families.PROMPT
    tail = torch.tensor([[4, 9, 33, 7, 61, 8], [90, 5, 5, 17, 3, 52]])
    full = engine.prefill(prompt).cache
    kept = [random_masks(full, seed, heads) for seed in (0, 1)]
    tile = RaggedBatch([cut(full, masks) for masks in kept], engine.max_batch, max_new_tokens=6)
    ids = torch.cat((tail, torch.zeros(engine.max_batch - 2, 6, dtype=torch.long)))
    logits = [engine.read(tile, part) for part in (ids[:, :4], ids[:, 4:5], ids[:, 5:])]
    for cell, masks in enumerate(kept):
        expected, without = (
            masked_forward(engine.model, torch.cat((prompt, tail[cell])), len(prompt), each)[-3:]
            for each in (masks, [None] * len(masks))
        )
        assert (torch.stack([step[cell] for step in logits]) - expected).abs().max() < most
        assert (without - expected).abs().max() > 1e-2, "the masks must matter"


def test_cells_decode_as_if_alone_and_change_nothing() -> None:
    """Which cells share a tile, and in what order, does not change a bit of any answer, nor of the prompt's cache."""
    engine = make_engine()
    prefilled = engine.prefill(PROMPT, {8})
    before = [layer.keys.clone() for layer in prefilled.cache.layers]
    policy = Policy("snapkv", window=8, recent=8)
    evictions = [Eviction(policy, Attention(), parse_budget(text)) for text in ("0.2", "0.3", "0.5", "1.0")]
    evictions.append(Eviction(Policy("streaming_llm", sink=4), Recency(), TokenBudget(20)))
    caches = [eviction(prefilled.cache) for eviction in evictions]
    alone = [same(answers(engine, prefilled, [cache], 20)[0]) for cache in caches]
    assert [same(answer) for answer in answers(engine, prefilled, caches[:4], 20)] == alone[:4]
    assert [same(answer) for answer in answers(engine, prefilled, caches[::-1][:4], 20)] == alone[::-1][:4]
    assert len({answer.ids for answer in alone}) > 1
    assert all(torch.equal(was, layer.keys) for was, layer in zip(before, prefilled.cache.layers, strict=True))
    assert engine.counters.prefills == 1 and engine.counters.tokens_prefilled == len(PROMPT)


def test_answers_end_at_the_stop_token() -> None:
    """The stop token is the last one; the other cells of the tile go on as they would have."""
    engine = make_engine()
    prefilled = engine.prefill(PROMPT, {8})
    caches = [
        prefilled.cache,
        Eviction(Policy("h2o_obcache", window=8, recent=8), Attention(), TokenBudget(12))(prefilled.cache),
    ]
    free = answers(engine, prefilled, caches, 12)
    stop = next(token for token in free[0].ids if token not in free[1].ids)
    stopped = answers(engine, prefilled, caches, 12, stop)
    assert stopped[0].ids == free[0].ids[: free[0].ids.index(stop) + 1]
    assert stopped[1].ids == free[1].ids
    assert stopped[0].top2_margin >= free[0].top2_margin and stopped[0].seconds > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_break_the_answer(value: float) -> None:
    """Of that cell alone."""
    engine = make_engine()
    prefilled = engine.prefill(PROMPT)
    layers = list(prefilled.cache.layers)
    layers[1] = replace(layers[1], values=torch.full_like(layers[1].values, value))
    spoilt, whole = answers(engine, prefilled, [KVCache(tuple(layers), len(PROMPT)), prefilled.cache], 6)
    assert spoilt.broken and len(spoilt.ids) == 1
    assert not whole.broken and len(whole.ids) == 6


def test_peak_bytes_are_those_of_the_tile() -> None:
    """Measured by storage; missing cells hold nothing."""
    engine = make_engine()
    full = engine.prefill(PROMPT).cache
    tile = RaggedBatch([full, cut(full, random_masks(full, 0))], engine.max_batch, max_new_tokens=5)
    a_tail = 3 * 2 * 5 * 8 * 2 * 4  # layers, KV heads, room, head size, K and V, float32
    assert tile.peak_bytes[0] == full.bytes_held + a_tail
    assert sum(tile.peak_bytes) == stored_bytes(tile)


def test_answers_are_those_of_generate() -> None:
    """Until `at_least` tokens the best of those that end no answer is taken, as transformers' min_new_tokens does."""
    engine = make_engine()
    prefilled = engine.prefill(PROMPT)

    def ours(stop: tuple[int, ...], least: int) -> list[int]:
        tile = RaggedBatch([prefilled.cache], engine.max_batch, 12)
        return list(engine.generate(prefilled, tile, stop, at_least=least)[0].ids)

    def theirs(stop: int | None, least: int) -> list[int]:
        lengths: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": least}
        whole = tiny_llama().generate(PROMPT[None], do_sample=False, pad_token_id=0, eos_token_id=stop, **lengths)
        return whole[0, len(PROMPT) :].tolist()

    free = ours((), 0)
    assert free == ours((), 4) == theirs(None, 0)
    for least in (1, 3):
        assert ours(tuple(free[:1]), least) == theirs(free[0], least)


def test_caches_that_are_handed_over_are_freed_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a layer is copied, the layers before it are gone from the caches that an iterator gave."""
    engine = make_engine()
    full = engine.prefill(PROMPT).cache
    handed, kept = ([cut(full, random_masks(full, seed)) for seed in (0, 1)] for _ in range(2))
    watched = [[weakref.ref(layer.keys) for layer in cache.layers] for cache in handed]
    alive, order = [], batch_module.runs_of

    def watching(layers: Sequence[LayerCache], room: int) -> RaggedLayer:
        alive.append([sum(keys() is not None for keys in cell) for cell in watched])
        return order(layers, room)

    monkeypatch.setattr(batch_module, "runs_of", watching)
    expected = RaggedBatch(kept, engine.max_batch, max_new_tokens=4)
    alive.clear()
    tile = RaggedBatch((handed.pop(0) for _ in range(2)), engine.max_batch, max_new_tokens=4)
    assert alive == [[3, 3], [2, 2], [1, 1]]
    ids = torch.tensor([[5], [6], [0], [0]])
    assert torch.equal(engine.read(tile, ids), engine.read(expected, ids))


def test_votes_of_a_whole_prompt_take_the_norms_of_the_pass() -> None:
    """The log-sum-exp is that of the logits; what a few observed rows record is the same to the bit."""
    engine = Engine(tiny_llama())
    bridge.attach(engine.model)
    ids = torch.randint(5, 90, (MANY + 40,), generator=torch.Generator().manual_seed(0))
    both, few = (engine.prefill(ids, windows).cache.layers for windows in ({MANY + 40, 16}, {16}))
    for layer, alone in zip(both, few, strict=True):
        every, newest = layer.observed(MANY + 40), layer.observed(16)
        rows = every.queries, every.outputs, layer.dense[0], AttentionParams(every.scaling)
        assert (every.lse - observe(*rows).lse).abs().max() < 1e-5
        for name in ("queries", "outputs", "lse"):
            assert torch.equal(getattr(newest, name), getattr(alone.windows[0], name)), name
        assert torch.equal(layer.keys, alone.keys)


@pytest.mark.parametrize(
    ("ids", "message"), [([], "the prompt has no tokens"), ([3, 97], r"token 97, but the model knows 97")]
)
def test_a_prompt_that_the_model_cannot_read_is_refused(ids: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_engine().prefill(torch.tensor(ids, dtype=torch.long))
