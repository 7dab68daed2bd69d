"""Live bytes at 128K tokens of an 8B shape against what is planned: by shapes alone, for 3 of its 32 equal layers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM

from kvbench.cache import attention
from kvbench.cache.attention import CHUNK_LOGITS, COLUMN_CHUNK, OBSERVED_ROWS, logits_by_chunk
from kvbench.eviction.allocation.heads import FlatHeads, MixHeads
from kvbench.eviction.allocation.layers import EntropyLayers
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention, Cake
from kvbench.eviction.scores.host import Caote
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint
from kvbench.eviction.scores.score import Score
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine, Prefilled
from kvbench.run.memory import cell_bytes, count_rankings
from tests.live_bytes import LiveBytes
from tests.run.test_prefill_job import cells

LAYERS, HEADS, GROUP, HEAD_DIM, TOKENS, BUDGET, NEW = 3, 8, 4, 128, 131072, 1024, 16
PAIR = HEADS * 2 * HEAD_DIM * 2
LAYER = TOKENS * PAIR
FULL = LAYERS * LAYER
POSITIONS = LAYERS * TOKENS * HEADS * 4
"""Four bytes per KV pair, which no plan counts: less than one hundredth of the cache."""
SNAPKV = Policy("snapkv", window=32, recent=32, pool=Pool("max", 7))


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The widths of Llama 3.1 8B in bfloat16; its fused attention allocates nothing but outputs."""
    shape = OmegaConf.load(Path(__file__).parents[2] / "conf" / "model" / "shape" / "llama3.1-8b.yaml").shape.config
    config = LlamaConfig(**{**OmegaConf.to_container(shape), "num_hidden_layers": LAYERS})
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
    bridge.attach(model)
    return Engine(model, attend=lambda queries, keys, values, rule: torch.empty_like(queries), max_length=2 * TOKENS)


def prefilled(engine: Engine, tokens: int, rows: int) -> tuple[Prefilled, LiveBytes]:
    with LiveBytes() as memory:
        return engine.prefill(torch.arange(tokens) % 90, {rows}), memory


@pytest.fixture(scope="module")
def long(engine: Engine) -> tuple[Prefilled, LiveBytes, int]:
    """A prompt of 131,072 tokens, and the most bytes while it was read."""
    full, memory = prefilled(engine, TOKENS, 32)
    return full, memory, memory.peak


def test_a_prompt_takes_its_cache_and_a_pass_over_one_block(
    engine: Engine, long: tuple[Prefilled, LiveBytes, int]
) -> None:
    """What a pass holds beside the cache does not grow with the prompt; all observed rows are there once."""
    _, short = prefilled(engine, engine.prefill_chunk, 32)
    _, memory, peak = long
    a_pass = short.peak - engine.prefill_chunk * PAIR * LAYERS
    chunk = 2 * CHUNK_LOGITS * 4  # logits of a chunk of columns, and their exponentials
    assert FULL < memory.live < peak < FULL + POSITIONS + a_pass + chunk
    recorded = LAYERS * HEADS * GROUP * 2 * engine.prefill_chunk * (2 * HEAD_DIM * 2 + 4)
    _, every = prefilled(engine, 2 * engine.prefill_chunk, 2 * engine.prefill_chunk)
    pass_of_all = prefilled(engine, engine.prefill_chunk, engine.prefill_chunk)[1].peak
    assert every.peak < 2 * engine.prefill_chunk * PAIR * LAYERS + recorded + pass_of_all


def test_scores_over_all_queries_hold_those_of_one_layer_and_pass(engine: Engine) -> None:
    """In blocks and in one pass: sums, and the logits of a chunk. Recorded queries of three layers take 580 MiB."""
    tokens, request = 3 * engine.prefill_chunk, (Attention(), "sum", 0)
    sums, chunk = LAYERS * HEADS * GROUP * tokens * 4, OBSERVED_ROWS * COLUMN_CHUNK * HEADS * GROUP * 4
    queries = HEADS * GROUP * tokens * (2 * HEAD_DIM * 2 + 4)
    for block in (engine.prefill_chunk, tokens):
        peaks = []
        for windows, summed in ((set[int](), ()), (set[int](), (request,)), ({tokens}, ())):
            with LiveBytes() as memory:
                full = engine.prefill(torch.arange(tokens) % 90, windows, prefill_chunk=block, summed=summed)
            peaks.append(memory.peak)
            del full
        nothing, over_all, recorded = peaks
        assert nothing < over_all < nothing + sums + chunk
        assert recorded - over_all > (LAYERS - 1) * queries
    assert over_all == nothing + sums  # in one pass nothing else is held at its peak


def test_a_layer_is_scored_in_few_chunks() -> None:
    """Each chunk is some ten launches of PyTorch on a GPU; a CPU has 128 chunks, which stay in its caches."""
    queries, keys = (torch.empty(heads, tokens, HEAD_DIM, device="meta") for heads, tokens in ((32, 32), (8, TOKENS)))
    assert len([*logits_by_chunk(queries, keys, 1.0)]) == 16


SCORES = (Attention(), Cake(), OBCacheJoint(), ExactRemoval(), ExactZeroed(), Caote())


@pytest.mark.parametrize(
    ("policy", "score"),
    [
        pytest.param(policy, score, marks=() if place % 2 == shift else pytest.mark.slow, id=f"{name}-{score.name}")
        for shift, (name, policy) in enumerate(
            {"uniform": SNAPKV, "ragged": replace(SNAPKV, heads=FlatHeads())}.items()
        )
        for place, score in enumerate(SCORES)
    ],
)
def test_an_eviction_takes_what_is_planned_and_one_layer(
    long: tuple[Prefilled, LiveBytes, int], policy: Policy, score: Score
) -> None:
    """Full cache, kept pairs (twice, with the batch) and rankings as planned; less than a layer while ranking."""
    cell = cells("1024")[1].with_method(policy=policy, score=score)
    full, memory, _ = long
    memory.reset()
    number, rankings = count_rankings([cell], TOKENS, LAYERS * HEADS, GROUP)
    assert number == 1
    planned = FULL + BUDGET * LAYERS * PAIR + cell_bytes(cell, TOKENS, NEW, LAYERS * PAIR, GROUP)
    eviction, before = Eviction(policy, cell.score, cell.budget), memory.live - FULL
    memory.kept = HEADS * (BUDGET - policy.protected)
    with memory, torch.inference_mode():
        ranked = eviction.rank(full.cache)
        decision = eviction.decide(full.cache, ranked)
        compressed = [eviction.evict(full.cache, decision)]
        assert compressed[0].pairs == LAYERS * HEADS * BUDGET
        del decision
        assert memory.peak < before + planned + rankings + LAYER
        memory.reset()
        batch = RaggedBatch((compressed.pop() for _ in range(1)), 1, NEW)
        assert memory.peak < before + planned + rankings + LAYER / 64
        del ranked
    assert FULL < memory.live < before + planned
    assert batch.num_active == 1


SHARED = {
    "ada_snapkv": replace(SNAPKV, heads=MixHeads()),
    "lava": replace(SNAPKV, heads=FlatHeads(), layers=EntropyLayers()),
}


@pytest.mark.parametrize("tokens", [3 * 4096, pytest.param(TOKENS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["ada_snapkv", pytest.param("lava", marks=pytest.mark.slow)])
def test_reading_in_blocks_takes_the_budget_and_a_block(
    engine: Engine, name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12K and 128K tokens take what 8K take, but for ids; activations included, less than a full cache of 128K."""
    monkeypatch.setattr(attention, "fused", lambda queries, keys, values, rule: torch.empty_like(queries))
    evictor, block = (
        IncrementalEviction(Eviction(SHARED[name], Attention(), TokenBudget(BUDGET)), BUDGET),
        engine.prefill_chunk,
    )
    peaks = []
    for length in (2 * block, tokens):
        with LiveBytes() as memory:
            memory.kept = HEADS * (BUDGET - 32)
            read = engine.prefill_evicting(torch.arange(length) % 90, evictor, block)
        assert read.cache.pairs == LAYERS * HEADS * BUDGET and read.full_bytes == LAYERS * length * PAIR
        assert LAYERS * BUDGET * PAIR < memory.live < LAYERS * BUDGET * PAIR * 1.03
        peaks.append(memory.peak - 8 * length)
    assert peaks[0] == peaks[1] < 0.6 * FULL
