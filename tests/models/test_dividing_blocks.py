"""A prompt read in blocks whose heads or layers share the budget: what is kept, and what is held."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kvbench.eviction.allocation.allocation import Heads, Layers, UniformHeads, UniformLayers
from kvbench.eviction.allocation.heads import BinaryHeads, FlatHeads, MixHeads, SafeguardHeads
from kvbench.eviction.allocation.layers import (
    EntropyLayers,
    GlobalLayers,
    LazyLayers,
    PreferenceLayers,
    PyramidLayers,
    TableLayers,
)
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, kept_of
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.head_table import HeadTable
from kvbench.models import bridge
from kvbench.models.decode.evicting_batch import EvictingBatch
from tests.models.conftest import PROMPT, make_engine
from tests.models.masked_blocks import Shared, read_in_blocks

HEADS: dict[str, Heads] = {
    "uniform": UniformHeads(),
    "flat": FlatHeads(),
    "mix": MixHeads(alpha=0.2),
    "safeguard": SafeguardHeads(alpha=0.6),
    "binary": BinaryHeads(),
}
LAYERS: dict[str, Layers] = {
    "uniform": UniformLayers(),
    "pyramid": PyramidLayers(beta=3),
    "entropy": EntropyLayers(),
    "preference": PreferenceLayers(),
    "global": GlobalLayers(),
    "lazy": LazyLayers(),
}
SHARED = {
    "ada_snapkv": Shared(18, heads="mix", pool=5),
    "ada_snapkv published": Shared(18, heads="mix", pool=5, official=True),
    "ada safeguard": Shared(18, heads="safeguard", sink=2),
    "h2o_kvzip": Shared(18, heads="flat", recent=0, window=1000),
    "flat, summed": Shared(18, heads="flat", window=1000, accumulate=True),
    "pyramidkv": Shared(18, layers="pyramid", beta=3),
    "ada_pyramidkv": Shared(18, heads="mix", layers="pyramid", beta=3, pool=3),
    "lava": Shared(18, heads="flat", layers="entropy", window=1),
    "lava published": Shared(18, heads="mix", layers="entropy", official=True),
    "lava_no_head": Shared(18, layers="entropy", sink=1),
    "cake": Shared(18, layers="preference", sink=2),
    "cake, flat": Shared(18, heads="flat", layers="preference"),
    "kvzip": Shared(18, layers="global", sink=3, recent=0),
    "kvzip_head": Shared(18, heads="binary", layers="global", sink=3),
    "whole heads of a layer": Shared(36, heads="binary", sink=1),
    "simlayerkv": Shared(27, layers="lazy", sink=2),
    "lukv": Shared(18, layers="table", sink=2),
}
BLOCKS = [7, 16, 20, 61]


def eviction_of(shared: Shared, folder: Path) -> Eviction:
    layers: Layers
    if shared.table is not None:
        np.save(folder / "table.npy", shared.table)
        layers = TableLayers(path=str(folder / "table.npy"))
    else:
        layers = LAYERS[shared.layers]
    policy = Policy(
        "shared",
        window=shared.window,
        pool=Pool("max", shared.pool) if shared.pool else None,
        sink=shared.sink,
        recent=shared.recent,
        heads=HEADS[shared.heads],
        layers=layers,
        variant="official" if shared.official else "paper",
        state="accumulate" if shared.accumulate else "overwrite",
    )
    return Eviction(policy, Attention(), TokenBudget(shared.budget))


def with_table(shared: Shared) -> Shared:
    """Heads that keep more and less; those of a larger budget keep more of it."""
    if shared.layers != "table":
        return shared
    slope = np.random.default_rng(0).uniform(0.4, 1.6, (3, 2))
    kept = np.linspace(0.99, 0.01, 99)[:, None, None] ** slope
    return replace(shared, table=1 - kept)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", SHARED)
def test_blocks_keep_what_the_oracle_keeps(name: str, block: int, tmp_path: Path) -> None:
    shared, engine = with_table(SHARED[name]), make_engine(torch.float64)
    eviction = eviction_of(shared, tmp_path)
    prefilled = engine.prefill_evicting(PROMPT, IncrementalEviction(eviction, shared.budget), block)
    oracle, logits = read_in_blocks(engine.model, PROMPT, shared, block)
    kept = [[head.nonzero()[:, 0].tolist() for head in layer] for layer in kept_of(prefilled.cache)]
    assert kept == [oracle.held[layer] for layer in sorted(oracle.held)]
    assert (prefilled.logits - logits).abs().max() < 1e-4
    assert prefilled.cache.pairs < 6 * 61
    if not shared.official:
        assert prefilled.cache.pairs <= 6 * shared.budget
    if block == 16 and name in ("ada_snapkv", "lava", "cake", "lukv"):  # else nothing would test that a budget moves
        lengths = prefilled.cache.lengths
        assert int(lengths.sum()) == 6 * shared.budget and len(set(lengths.flatten().tolist())) > 1
        assert name == "ada_snapkv" or len(set(lengths.sum(1).tolist())) > 1


@pytest.mark.parametrize("name", SHARED)
def test_a_block_as_long_as_the_prompt_is_one_eviction(name: str, tmp_path: Path) -> None:
    shared, engine = with_table(SHARED[name]), make_engine(torch.float64)
    eviction = eviction_of(shared, tmp_path)
    full = engine.prefill(PROMPT, {min(61, shared.window)})
    at_once = eviction(full.cache)
    read = engine.prefill_evicting(PROMPT, IncrementalEviction(eviction, shared.budget), 200)
    assert torch.equal(read.cache.lengths, at_once.lengths) and read.full_bytes == full.full_bytes
    for layer, expected in zip(read.cache.layers, at_once.layers, strict=True):
        assert torch.equal(layer.positions, expected.positions)
        assert torch.allclose(layer.keys, expected.keys, atol=1e-12)
    assert torch.allclose(read.logits, full.logits, atol=1e-10)


@pytest.mark.parametrize("name", SHARED)
def test_bytes_follow_budget_and_block(name: str, tmp_path: Path) -> None:
    """At the end of every block: exactly the pairs held, the budget after the eviction and a block more before it."""
    shared, engine = with_table(SHARED[name]), make_engine(torch.float64)
    evictor = IncrementalEviction(eviction_of(shared, tmp_path), shared.budget)
    reader = replace(engine.evicting_cache(evictor, 1), divides=evictor.divides)
    batch, block, before = EvictingBatch([reader], 1, 61), 9, 0
    a_pair = 2 * 8 * 8 + 4 + 4 * shared.accumulate
    for start in range(0, 61, block):
        part = PROMPT[start : start + block]
        with torch.inference_mode():
            bridge.forward(engine.model, part[None], start, batch)
        batch.finish(len(part))
        held = reader.freeze()
        assert held.bytes_held == held.pairs * 2 * 8 * 8 and held.bytes_allocated == held.pairs * a_pair
        assert reader.peak_bytes >= (before + 6 * len(part)) * a_pair
        if not shared.official:
            assert held.pairs <= 6 * shared.budget
            assert reader.peak_bytes <= 6 * (shared.budget + block) * a_pair
        before = held.pairs


@pytest.mark.parametrize("name", ["ada_snapkv", "lava", "simlayerkv"])
def test_an_answer_keeps_the_sizes_that_the_blocks_left(name: str, tmp_path: Path) -> None:
    shared, engine = SHARED[name], make_engine(torch.float64)
    evictor = IncrementalEviction(eviction_of(shared, tmp_path), shared.budget)
    for tokens, block in ((61, 16), (11, 4)):
        cache = engine.prefill_evicting(PROMPT[:tokens], evictor, block).cache
        growing = engine.evicting_cache(evictor.after(cache), 1, cache)
        batch = EvictingBatch([growing], 1, 15)
        for token in range(15):
            engine.read(batch, torch.tensor([[token]]))
        batch.return_layers()
        lengths = growing.freeze().lengths
        if tokens < shared.budget:  # everything was kept: the cache grows to the budget
            assert (lengths == (tokens + 15 if name == "simlayerkv" else shared.budget)).all()
            continue
        whole = (cache.lengths == tokens) if name == "simlayerkv" else torch.zeros_like(lengths, dtype=torch.bool)
        assert torch.equal(lengths, cache.lengths + 15 * whole)


def test_heads_of_a_table_stay_whole_while_the_budget_pays_for_them(tmp_path: Path) -> None:
    """DuoAttention: of six heads five are paid for after 20 tokens, and two of 61 tokens with 20 pairs on average."""
    np.savetxt(tmp_path / "heads.tsv", [[0.1, 0.9], [0.7, 0.2], [0.0, 0.8]], delimiter="\t", fmt="%g")
    policy = Policy("duo", window=1, sink=1, recent=3, heads=BinaryHeads(), layers=GlobalLayers())
    evictor = IncrementalEviction(Eviction(policy, HeadTable(path=str(tmp_path / "heads.tsv")), TokenBudget(20)), 20)
    engine, best = make_engine(), [(0, 1), (2, 1), (1, 0), (1, 1), (0, 0), (2, 0)]
    for tokens in (20, 24, 41, 61):
        cache = engine.prefill_evicting(PROMPT[:tokens], evictor, 8).cache
        whole = best[: 6 * 16 // (tokens - 4)]
        for layer, masks in enumerate(kept_of(cache)):
            for head, kept in enumerate(masks):
                left = range(tokens) if (layer, head) in whole else [0, *range(tokens - 3, tokens)]
                assert kept.nonzero()[:, 0].tolist() == list(left)
