"""Caches that are cut as they grow: equal to an oracle that computes every row by itself, in double precision."""

from dataclasses import dataclass, replace

import pytest
import torch

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.score import Reduce
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.engine import Engine
from tests.models.conftest import PROMPT, make_engine
from tests.models.families import engine_of, tiny
from tests.models.stepwise import StepwiseReader, stepwise_forward

H2O = Eviction(Policy("h2o_obcache", window=61, recent=6, state="accumulate"), Attention(), TokenBudget(18))
TOVA = Eviction(Policy("tova_obcache", window=1), Attention(), TokenBudget(18))
ANSWER = torch.randint(0, 97, (13,), generator=torch.Generator().manual_seed(5))


def cut_prompt(engine: Engine, prompt: torch.Tensor, eviction: Eviction, every: int = 1) -> EvictingCache:
    """A prompt that was read whole and cut, ready to be cut again as it grows."""
    full = engine.prefill(prompt, {eviction.policy.window}).cache
    decision = eviction.decide(full)
    evictor = IncrementalEviction(eviction, capacity_after(eviction, full, decision))
    return EvictingCache(evictor, every, evictor.remember(full, decision, eviction.evict(full, decision)))


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("eviction", [H2O, TOVA], ids=lambda eviction: eviction.policy.name)
def test_cuts_while_decoding_are_those_of_the_oracle(eviction: Eviction, every: int) -> None:
    engine = make_engine(torch.float64)
    tile = EvictingBatch([cut_prompt(engine, PROMPT, eviction, every)], engine.max_batch, len(ANSWER))
    logits = [engine.read(tile, token.expand(engine.max_batch, 1))[0] for token in ANSWER]
    policy = eviction.policy
    oracle = StepwiseReader(len(PROMPT), every, 18, policy.recent, policy.state == "accumulate")
    expected = stepwise_forward(engine.model, torch.cat((PROMPT, ANSWER)), oracle)
    assert (torch.stack(logits) - expected[len(PROMPT) :]).abs().max() < 1e-10
    plain = RaggedBatch([eviction(engine.prefill(PROMPT, {policy.window}).cache)], engine.max_batch, len(ANSWER))
    grown = [engine.read(plain, token.expand(engine.max_batch, 1))[0] for token in ANSWER]
    assert (torch.stack(grown) - torch.stack(logits)).abs().max() > 1e-3  # the cuts are what is tested


@pytest.mark.parametrize("block", [7, 61, 100])
@pytest.mark.parametrize("eviction", [H2O, TOVA], ids=lambda eviction: eviction.policy.name)
def test_cuts_after_every_block_are_those_of_the_oracle(eviction: Eviction, block: int) -> None:
    engine = make_engine(torch.float64)
    evictor = IncrementalEviction(eviction, 18)
    prefilled = engine.prefill_evicting(PROMPT, evictor, block)
    assert (prefilled.cache.lengths == 18).all() and prefilled.cache.num_tokens == 61
    policy = eviction.policy
    oracle = StepwiseReader(0, block, 18, policy.recent, policy.state == "accumulate")
    expected = stepwise_forward(engine.model, PROMPT, oracle)
    assert (prefilled.logits - expected[-1]).abs().max() < 1e-10
    assert engine.counters.prefills == 1 and engine.counters.tokens_prefilled == 61


def test_blocks_of_one_token_are_those_of_an_answer_and_of_its_likelihood() -> None:
    engine, prompt, evictor = make_engine(torch.float64), PROMPT[:40], IncrementalEviction(H2O, 18)
    text = torch.cat((prompt, ANSWER))
    expected = stepwise_forward(engine.model, text, StepwiseReader(0, 1, 18, 6, True))
    begun = engine.prefill_evicting(prompt, evictor, 1)
    assert (begun.logits - expected[len(prompt) - 1]).abs().max() < 1e-10
    tile = EvictingBatch([EvictingCache(evictor, 1, begun.cache)], 1, len(ANSWER))
    logits = [engine.read(tile, token.view(1, 1))[0] for token in ANSWER]
    assert (torch.stack(logits) - expected[len(prompt) :]).abs().max() < 1e-10
    losses = torch.nn.functional.cross_entropy(expected[:-1], text[1:], reduction="none")
    assert torch.allclose(engine.nll(text, [EvictingCache(evictor, 1)])[0], losses, atol=1e-10)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gpt_oss", "qwen2 window"])
def test_without_a_cut_all_is_as_in_transformers(family: str) -> None:
    """Soft caps, learned sinks and local layers too; a sliding window of 19 cuts those on its own."""
    model, prompt = tiny(family), PROMPT[:30]
    logits = model(prompt[None]).logits[0]
    expected = torch.nn.functional.cross_entropy(logits[:-1], prompt[1:], reduction="none")
    bridge.attach(model)
    engine = Engine(model)
    evictor = IncrementalEviction(TOVA, 1000)
    assert torch.allclose(engine.nll(prompt, [EvictingCache(evictor, 1)])[0], expected, atol=1e-4)
    prefilled = engine.prefill_evicting(prompt, evictor, 20)
    assert torch.allclose(prefilled.logits, logits[-1], atol=1e-4)
    local = [set(layer.lengths) for layer in prefilled.cache.layers if not layer.evictable]
    assert local == [{18}] * (2 if family != "llama" else 0)


@pytest.mark.parametrize(
    ("every", "capacity", "evictions"), [(1, 18, 13), (4, 18, 3), (1, 70, 4), (4, 70, 1), (4, 99, 0)]
)
def test_evictions_are_the_passes_after_which_pairs_are_lost(every: int, capacity: int, evictions: int) -> None:
    """Of 61 tokens and 13 of an answer; a budget that is not reached evicts nothing, and running scores are no loss."""
    engine = make_engine()
    eviction = replace(H2O, budget=TokenBudget(capacity))
    tile = EvictingBatch([cut_prompt(engine, PROMPT, eviction, every)], engine.max_batch, len(ANSWER))
    for token in ANSWER:
        engine.read(tile, token.expand(engine.max_batch, 1))
    assert tile.evictions(0) == evictions


def test_memory_is_what_is_held_at_most() -> None:
    engine = make_engine()
    growing = cut_prompt(engine, PROMPT, H2O, every=4)
    start = growing.freeze()
    tile = EvictingBatch([growing], engine.max_batch, len(ANSWER))
    for token in ANSWER:
        engine.read(tile, token.expand(engine.max_batch, 1))
    a_pair = 2 * 8 * 4 + 4 + 4  # K and V of 8 float32, a position, a running score
    assert start.bytes_allocated == 3 * 2 * 18 * a_pair
    assert tile.peak_bytes == [3 * 2 * (18 + 3) * a_pair]


def test_memory_counts_local_layers_too() -> None:
    """Two global layers with three tokens more than the budget, and two that hold the 18 newest tokens."""
    engine = engine_of("gemma2")
    tile = EvictingBatch([cut_prompt(engine, PROMPT, TOVA, every=4)], engine.max_batch, len(ANSWER))
    for token in ANSWER:
        engine.read(tile, token.expand(engine.max_batch, 1))
    assert tile.peak_bytes == [2 * 2 * (18 + 3 + 18) * (2 * 10 * 4 + 4)]


def test_a_cell_that_stopped_does_not_grow_beside_others() -> None:
    """What its row says of memory is the same however long its neighbour goes on."""
    engine = make_engine(torch.float64)
    few, many = (Eviction(Policy("tova_obcache", window=1), Attention(), TokenBudget(size)) for size in (9, 40))
    prefilled = engine.prefill(PROMPT, {1})

    def answers(stop: set[int], *evictions: Eviction) -> list[tuple[tuple[int, ...], int]]:
        tile = EvictingBatch(
            [cut_prompt(engine, PROMPT, eviction, every=30) for eviction in evictions], engine.max_batch, 25
        )
        generated = engine.generate(prefilled, tile, stop, question=ANSWER[:3])
        return [(answer.ids, peak) for answer, peak in zip(generated, tile.peak_bytes, strict=True)]

    first, second = (ids for ids, _ in answers(set(), few, many))
    stop = next(token for place, token in enumerate(first) if token not in second[: place + 5])
    assert len(answers({stop}, few, many)[0][0]) < len(answers({stop}, few, many)[1][0])
    assert answers({stop}, few, many)[0] == answers({stop}, few)[0]


@dataclass(frozen=True)
class Broken(Attention):
    """Attention that is no number from the token after the prompt on."""

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        scores = super().__call__(layer, window, reduce)
        return scores * torch.nan if layer.positions.max() > 60 else scores


BROKEN = replace(H2O, score=Broken())


def test_a_cell_that_cannot_be_cut_fails_alone() -> None:
    engine = make_engine(torch.float64)
    cells = [cut_prompt(engine, PROMPT, eviction) for eviction in (BROKEN, H2O, TOVA)]
    prefilled = engine.prefill(PROMPT, {1})
    tile = EvictingBatch(cells, engine.max_batch, 5)
    failed, *others = engine.generate(prefilled, tile, stop=())
    assert set(tile.failures) == {0} and "score attn of layer 0 is not finite" in tile.failures[0]
    assert [len(answer.ids) for answer in (failed, *others)] == [1, 5, 5]


def test_a_reader_alone_says_why_it_cannot_be_cut() -> None:
    engine, text = make_engine(), torch.cat((PROMPT, ANSWER))
    with pytest.raises(ValueError, match="not finite"):
        engine.prefill_evicting(text, IncrementalEviction(BROKEN, 18), 16)
    with pytest.raises(ValueError, match="not finite"):
        engine.nll(text, [engine.evicting_cache(IncrementalEviction(BROKEN, 18), 1)], 16)
