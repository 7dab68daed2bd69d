"""Reading and generating: equal to transformers when everything stays, equal to a masked forward when it does not."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from kvbench.cache.attention import AttentionParams, observe
from kvbench.cache.kv_cache import KVCache, LayerCache, compact
from kvbench.eviction.budget import FractionBudget, TokenBudget, parse_budget
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
from tests.models.conftest import tiny_llama
from tests.models.masked import masked_forward

MakeEngine = Callable[..., Engine]


def answers(engine: Engine, prefilled: Prefilled, caches: Sequence[KVCache], room: int, *stop: int) -> list[Generation]:
    """What the cells answer as one tile."""
    return engine.generate(prefilled, RaggedBatch(caches, engine.max_batch, room), stop)


def same(answer: Generation) -> Generation:
    """An answer without its time."""
    return replace(answer, seconds=0.0)


def test_keep_all_has_the_logits_of_transformers(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """The whole path of reading and decoding reproduces an eager forward pass, step by step."""
    engine, reference = make_engine(), tiny_llama()
    continuation = torch.tensor([5, 81, 2, 40])
    expected = reference(torch.cat((prompt, continuation))[None]).logits[0, len(prompt) - 1 :]
    prefilled = engine.prefill(prompt, windows=())
    tile = RaggedBatch([prefilled.cache], engine.max_batch, max_new_tokens=8)
    logits = [prefilled.logits] + [engine.read(tile, token.expand(engine.max_batch, 1))[0] for token in continuation]
    assert torch.stack(logits).sub(expected).abs().max() < 1e-4


def test_keep_all_answers_like_generate(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """Greedy text equals transformers' own generate."""
    engine = make_engine()
    expected = tiny_llama().generate(
        prompt[None], max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    prefilled = engine.prefill(prompt, windows=())
    (answer,) = answers(engine, prefilled, [prefilled.cache], 24)
    assert list(answer.ids) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("block", [1, 7, 16, 60, 61, 2048])
def test_block_size_changes_nothing(make_engine: MakeEngine, prompt: torch.Tensor, block: int) -> None:
    """Cache, evidence and logits are those of a prompt read whole."""
    whole = make_engine(torch.float64).prefill(prompt, windows={9})
    blocks = make_engine(torch.float64, prefill_chunk=block).prefill(prompt, windows={9})
    assert torch.allclose(whole.logits, blocks.logits, atol=1e-10)
    for left, right in zip(whole.cache.layers, blocks.cache.layers, strict=True):
        for name in ("keys", "values"):
            assert torch.allclose(getattr(left, name), getattr(right, name), atol=1e-10)
        for name in ("queries", "outputs", "lse"):
            assert torch.allclose(getattr(left.windows[0], name), getattr(right.windows[0], name), atol=1e-5), name


def test_evidence_is_what_attention_did(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """exp(logits - lse) of the recorded rows are attention weights whose outputs are the recorded ones."""
    cache = make_engine(torch.float64, prefill_chunk=13).prefill(prompt, windows={9}).cache
    for layer in cache.layers:
        keys, values = layer.dense
        (window,) = layer.windows
        assert window.queries.shape[1] == 9
        logits = window.queries @ keys.repeat_interleave(3, 0).mT * window.scaling
        hidden = torch.arange(61) > torch.arange(52, 61)[:, None]
        weights = (logits - window.lse[..., None]).exp().masked_fill(hidden, 0)
        assert torch.allclose(weights.sum(-1), torch.ones(6, 9, dtype=torch.float64), atol=1e-5)
        assert torch.allclose(weights @ values.repeat_interleave(3, 0), window.outputs, atol=1e-5)


def ragged(cache: KVCache, seed: int, heads: int = 2) -> tuple[torch.Tensor, ...]:
    """Random masks whose lengths differ by layer and head; one head of the first layer is empty."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(len(cache.layers), heads, 1, generator=generator)
    masks = torch.rand(len(cache.layers), heads, cache.num_tokens, generator=generator) < shares
    masks[0, 0] = False
    return tuple(masks)


@pytest.mark.parametrize("question", [1, 5])
@pytest.mark.parametrize("heads", [2, 6], ids=["kv_heads", "query_heads"])
def test_compacted_decode_is_a_masked_forward(
    make_engine: MakeEngine, prompt: torch.Tensor, question: int, heads: int
) -> None:
    """The oracle: a full forward with a per-head eviction mask equals decoding over the compacted, ragged cache."""
    engine = make_engine(torch.float64)
    tail = torch.tensor([[4, 9, 33, 7, 61, 8], [90, 1, 1, 17, 3, 52]])
    full = engine.prefill(prompt, windows=()).cache
    kept = [ragged(full, seed, heads) for seed in (0, 1)]
    tile = RaggedBatch([compact(full, masks) for masks in kept], engine.max_batch, max_new_tokens=6)
    padding = torch.zeros(engine.max_batch - 2, 6, dtype=torch.long)
    ids = torch.cat((tail, padding))
    logits = [engine.read(tile, ids[:, :question])]
    logits += [engine.read(tile, ids[:, step : step + 1]) for step in range(question, 6)]
    for cell in (0, 1):
        expected = masked_forward(engine.model, torch.cat((prompt, tail[cell])), len(prompt), kept[cell])
        actual = torch.stack([step[cell] for step in logits])
        assert (actual - expected[len(prompt) + question - 1 :]).abs().max() < 1e-10


def test_batched_cells_decode_as_if_alone(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """Which cells share a tile, and in what order, does not change a bit of any answer."""
    engine = make_engine()
    prefilled = engine.prefill(prompt, {8})
    policy = Policy("snapkv", window=8, recent=8)
    evictions = [Eviction(policy, Attention(), parse_budget(text)) for text in ("0.2", "0.3", "0.5", "1.0")]
    evictions.append(Eviction(Policy("streaming_llm", sink=4), Recency(), TokenBudget(20)))
    caches = [eviction(prefilled.cache) for eviction in evictions]
    alone = [same(answers(engine, prefilled, [cache], 20)[0]) for cache in caches]
    assert [same(answer) for answer in answers(engine, prefilled, caches[:4], 20)] == alone[:4]
    assert [same(answer) for answer in answers(engine, prefilled, caches[::-1][:4], 20)] == alone[::-1][:4]
    assert len({answer.ids for answer in alone}) > 1


def test_a_prefill_is_not_changed_by_its_cells(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """Evicting and decoding leave the shared cache untouched."""
    engine = make_engine()
    prefilled = engine.prefill(prompt, {8})
    before = [layer.keys.clone() for layer in prefilled.cache.layers]
    cache = Eviction(Policy("h2o_obcache", window=8, recent=8), Attention(), FractionBudget(parse_budget("0.3").share))(
        prefilled.cache
    )
    answers(engine, prefilled, [cache, prefilled.cache], 10)
    assert all(torch.equal(was, layer.keys) for was, layer in zip(before, prefilled.cache.layers, strict=True))
    assert engine.counters.prefills == 1 and engine.counters.tokens_prefilled == len(prompt)


def test_answers_end_at_the_stop_token(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """The stop token is the last one; the other cells of the tile go on as they would have."""
    engine = make_engine()
    prefilled = engine.prefill(prompt, {8})
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


def test_equal_logits_choose_the_first_token(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """As transformers' argmax does; topk leaves the order among equals open."""
    engine = make_engine()
    prefilled = engine.prefill(prompt)
    level = replace(prefilled, logits=torch.zeros_like(prefilled.logits).index_fill_(0, torch.arange(40, 90), 1.0))
    (answer,) = answers(engine, level, [prefilled.cache], 1)
    assert answer.ids == (40,) and answer.top2_margin == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_break_the_answer(
    make_engine: MakeEngine, prompt: torch.Tensor, value: float
) -> None:
    """Of that cell alone."""
    engine = make_engine()
    prefilled = engine.prefill(prompt)
    layers = list(prefilled.cache.layers)
    layers[1] = replace(layers[1], values=torch.full_like(layers[1].values, value))
    spoilt, whole = answers(engine, prefilled, [KVCache(tuple(layers), len(prompt)), prefilled.cache], 6)
    assert spoilt.broken and len(spoilt.ids) == 1
    assert not whole.broken and len(whole.ids) == 6


def test_peak_bytes_are_those_of_the_tile(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """Measured by storage; missing cells hold nothing."""
    engine = make_engine()
    full = engine.prefill(prompt).cache
    tile = RaggedBatch([full, compact(full, ragged(full, 0))], engine.max_batch, max_new_tokens=5)
    a_tail = 3 * 2 * 5 * 8 * 2 * 4  # layers, KV heads, room, head size, K and V, float32
    assert tile.peak_bytes[0] == full.bytes_held + a_tail
    assert sum(tile.peak_bytes) == stored_bytes(tile)


def test_an_empty_prompt_is_refused(make_engine: MakeEngine) -> None:
    """There is nothing to attend to."""
    with pytest.raises(ValueError, match="no tokens"):
        make_engine().prefill(torch.tensor([], dtype=torch.long))


def test_what_ends_an_answer_cannot_be_chosen_too_early(make_engine: MakeEngine, prompt: torch.Tensor) -> None:
    """Until then the best of the other tokens is taken, as transformers' min_length does."""
    engine = make_engine()
    prefilled = engine.prefill(prompt)
    (free,) = answers(engine, prefilled, [prefilled.cache], 12)
    for least in (1, 3):
        reference = tiny_llama().generate(
            prompt[None],
            max_new_tokens=12,
            min_new_tokens=least,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=free.ids[0],
        )
        tile = RaggedBatch([prefilled.cache], engine.max_batch, 12)
        (answer,) = engine.generate(prefilled, tile, {free.ids[0]}, at_least=least)
        assert list(answer.ids) == reference[0, len(prompt) :].tolist() and len(answer.ids) >= least
    (unending,) = engine.generate(prefilled, RaggedBatch([prefilled.cache], engine.max_batch, 12), (), at_least=4)
    assert unending.ids == free.ids


def test_caches_that_are_handed_over_are_freed_layer_by_layer(
    make_engine: MakeEngine, prompt: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a layer is copied, the layers before it are gone from the caches that an iterator gave."""
    engine = make_engine()
    full = engine.prefill(prompt).cache
    handed = [compact(full, ragged(full, seed)) for seed in (0, 1)]
    watched = [[weakref.ref(layer.keys) for layer in cache.layers] for cache in handed]
    alive, order = [], batch_module._order

    def watching(layers: Sequence[LayerCache], room: int) -> RaggedLayer:
        alive.append([sum(keys() is not None for keys in cell) for cell in watched])
        return order(layers, room)

    monkeypatch.setattr(batch_module, "_order", watching)
    expected = RaggedBatch([compact(full, ragged(full, seed)) for seed in (0, 1)], engine.max_batch, max_new_tokens=4)
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
def test_a_prompt_that_the_model_cannot_read_is_refused(ids: list[int], message: str, make_engine: MakeEngine) -> None:
    with pytest.raises(ValueError, match=message):
        make_engine().prefill(torch.tensor(ids, dtype=torch.long))
