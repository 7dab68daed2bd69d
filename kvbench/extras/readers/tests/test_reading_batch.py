"""Decoding that reads a part of the cache: all of it is dense decoding, and a part is attention over that part."""

from functools import cache
from typing import Any

import pytest
import torch

from kvbench.cache.kv_cache import KVCache, LayerCache, compact
from kvbench.config.entries import load_entry
from kvbench.config.settings import build
from kvbench.extras.readers.oracle_topk import OracleTopK
from kvbench.extras.readers.reader import Keys, Queries, Read, SparseReader
from kvbench.extras.readers.reading_batch import ReadingBatch
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from tests.models import families
from tests.models.families import PROMPT

TAIL = torch.tensor([[4, 9, 33, 7, 61], [90, 5, 5, 17, 3], [1, 2, 3, 4, 5]])
FAMILIES = ("llama", "gemma2", "gpt_oss")
"""Plain; soft caps and local layers; sinks and local layers."""
SPARSE = ("quest", "double_sparsity", "block_topk", "oracle_topk")


class EveryThird(SparseReader):
    """Reads the pairs 2, 5, 8, ... of a head and the newest one, whatever the query."""

    def read(self, queries: Queries, keys: Keys, prefix: int) -> Read:
        places = torch.arange(keys.shape[1])
        chosen = (places % 3 == 2) | (places == keys.shape[1] - 1)
        return chosen.expand(*queries.shape[:2], -1)


engine_of = cache(families.engine_of)


@cache
def ragged(
    family: str, seeds: tuple[int, ...], heads: int = 2, dtype: torch.dtype = torch.float32
) -> tuple[KVCache, ...]:
    """Caches of `PROMPT` whose heads keep different shares."""
    full = engine_of(family, dtype).prefill(PROMPT).cache
    caches = []
    for seed in seeds:
        draw = torch.Generator().manual_seed(seed)
        shares = 0.2 + torch.rand(len(full.evictable), heads, 1, generator=draw) * 0.8
        kept = torch.rand(len(full.evictable), heads, full.num_tokens, generator=draw) < shares
        caches.append(compact(full, tuple(kept.unbind())))
    return tuple(caches)


def read(engine: Engine, batch: RaggedBatch) -> torch.Tensor:
    """Logits after a question of three tokens and after each of two more."""
    steps = [engine.read(batch, TAIL[:, :3]), engine.read(batch, TAIL[:, 3:4]), engine.read(batch, TAIL[:, 4:])]
    return torch.stack(steps)[:, : batch.num_active]


def reader_of(name: str, **changed: Any) -> SparseReader:
    built = build("reader", load_entry("reader", name) | {"dense_layers": 0} | changed)
    assert isinstance(built, SparseReader)
    return built


@pytest.mark.parametrize(
    ("name", "family", "heads"),
    [
        *((name, "llama", 2 if name == "block_topk" else 6) for name in SPARSE),
        *(("quest", family, 2) for family in FAMILIES),
    ],
)
def test_reading_all_is_dense_decoding_to_the_bit(name: str, family: str, heads: int) -> None:
    engine = engine_of(family)
    caches = ragged(family, (0, 1), heads)
    dense = read(engine, RaggedBatch(caches, 3, 5))
    for question in ("dense", "sparse"):
        reader = reader_of(name, budget=1.0, question=question)
        assert torch.equal(read(engine, ReadingBatch(caches, 3, 5, reader, 3)), dense)
    part = read(engine, ReadingBatch(caches, 3, 5, reader_of(name, budget=2), 3))
    assert torch.equal(part[0], dense[0]) and (part[1:] - dense[1:]).abs().max() > 1e-3, "the budget must matter"


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_that_are_not_read_have_no_influence(family: str) -> None:
    """As if the others had never been kept; of the tail, all tokens of which are in the part, nothing is left out."""
    engine = engine_of(family)
    (kept_cache,) = ragged(family, (0,))

    def thirds(layer: LayerCache) -> LayerCache:
        places = torch.arange(max(layer.lengths))
        return layer.select((places % 3 == 2) & (places < torch.tensor(layer.lengths)[:, None]))

    smaller = kept_cache.with_evictable([thirds(layer) for layer in kept_cache.evictable])

    class Thirds(EveryThird):
        def read(self, queries: Queries, keys: Keys, prefix: int) -> Read:
            chosen = super().read(queries, keys, prefix).clone()
            chosen[..., prefix:] = True
            return chosen

    sparse = read(engine, ReadingBatch([kept_cache], 3, 5, Thirds(question="sparse"), 3))
    assert (sparse - read(engine, RaggedBatch([smaller], 3, 5))).abs().max() < 1e-4


@pytest.mark.parametrize("name", SPARSE)
def test_tokens_that_are_read_together_choose_one_after_the_other(name: str) -> None:
    engine = engine_of("llama", torch.float64)
    caches, reader = ragged("llama", (0, 1), dtype=torch.float64), reader_of(name, budget=20, question="sparse")
    together = ReadingBatch(caches, 3, 5, reader, 5)
    alone = ReadingBatch(caches, 3, 5, reader, 5)
    last = engine.read(together, TAIL)
    for token in range(5):
        step = engine.read(alone, TAIL[:, token : token + 1])
    assert (last - step)[:2].abs().max() < 1e-12


def test_bits_do_not_depend_on_the_cells_beside() -> None:
    engine, reader = engine_of("llama"), reader_of("quest", budget=16, page=4)
    caches = ragged("llama", (0, 1, 2))
    together = read(engine, ReadingBatch(caches, 3, 5, reader, 3))
    for count in (1, 2):
        assert torch.equal(read(engine, ReadingBatch(caches[:count], 3, 5, reader, 3)), together[:, :count])


def test_the_first_layers_of_quest_read_all() -> None:
    engine = engine_of("llama")
    caches = ragged("llama", (0,))
    whole = read(engine, RaggedBatch(caches, 3, 5))
    differing = []
    for layers in (0, 3, 4):
        reader = reader_of("quest", budget=2, page=1, dense_layers=layers)
        differing.append((read(engine, ReadingBatch(caches, 3, 5, reader, 3)) - whole).abs().max().item())
    assert differing[0] != differing[1] and min(differing[:2]) > 1e-3 and differing[2] == 0


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_dense_cells_count_all_that_they_hold(family: str) -> None:
    """For the two tokens after a question of three, with four and five tokens of the tail."""
    engine = engine_of(family)
    caches = ragged(family, (0, 1))
    counted = ReadingBatch(caches, 3, 5, reader_of("oracle_topk", budget=1.0), 3)
    analytic = RaggedBatch(caches, 3, 5)
    read(engine, counted)
    for cell, held in enumerate(caches):
        pairs = 0.0
        for layer in held.layers:
            window = layer.sliding_window or 10**9
            pairs += sum(min(window, length + tail) for length in layer.lengths for tail in (4, 5)) / 2
        expected = pairs * 2 * held.layers[0].keys.shape[1] * 4
        assert analytic.bytes_read(cell, 3, 2) == (expected, 0) == counted.bytes_read(cell, 3, 2)
    assert analytic.bytes_read(0, 3, 0) is None and counted.bytes_read(0, 3, 0) is None


@pytest.mark.parametrize("selection", ["query_heads", "kv_heads"])
@pytest.mark.parametrize("name", SPARSE)
def test_bytes_of_a_reader_are_those_of_what_it_chose(
    name: str, selection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair that several query heads of a group read is read once."""
    engine, reader = engine_of("llama"), reader_of(name, budget=24, selection=selection, dense_layers=1)
    (kept_cache,) = ragged("llama", (0,))
    chosen = list[torch.Tensor]()
    plain = type(reader).read

    def kept(self: SparseReader, queries: Queries, keys: Keys, prefix: int) -> Read:
        chosen.append(plain(self, queries, keys, prefix))
        return chosen[-1]

    monkeypatch.setattr(type(reader), "read", kept)
    batch = ReadingBatch([kept_cache], 3, 5, reader, 3)
    read(engine, batch)
    counted, head_dim = batch.bytes_read(0, 3, 2), kept_cache.layers[0].keys.shape[1]
    pairs = sum(int(part.any(dim=1).sum()) for part in chosen)
    pairs += sum(length + tail for length in kept_cache.layers[0].lengths for tail in (4, 5))  # the dense layer
    index = {
        "quest": lambda held: 2 * head_dim * -(-held // 16),
        "block_topk": lambda held: head_dim * -(-held // 16),
        "double_sparsity": lambda held: held,  # 0.0625 of 8 channels is one
        "oracle_topk": lambda held: held * head_dim,
    }[name]
    numbers = sum(index(part.shape[2]) * len(part) for part in chosen if part.shape[2] > 24)
    assert counted == (pairs / 2 * 2 * head_dim * 4, numbers / 2 * 4)
    assert numbers > 0 and len(chosen) >= 2 * 3


def test_an_answer_is_counted_without_those_that_are_longer() -> None:
    """Its bytes are those of its own tokens, and a batch that is narrowed goes on counting for the others."""
    engine, reader = engine_of("llama"), reader_of("quest", budget=16, page=4)
    caches = ragged("llama", (0, 1, 2))
    prefilled = engine.prefill(PROMPT)
    free = engine.generate(prefilled, ReadingBatch(caches, 3, 12, reader), ())
    assert len(free[0].ids) == 12
    stop = {free[1].ids[2]}
    together = ReadingBatch(caches, 3, 12, reader)
    answers = engine.generate(prefilled, together, stop)
    assert len({len(answer.ids) for answer in answers}) > 1 and together.num_active < 3
    for cell, answer in enumerate(answers):
        alone = ReadingBatch([caches[cell]], 3, 12, reader)
        (same,) = engine.generate(prefilled, alone, stop)
        assert same.ids == answer.ids
        assert together.bytes_read(cell, 0, len(answer.ids) - 1) == alone.bytes_read(0, 0, len(answer.ids) - 1)


def test_a_reader_runs_without_a_graph() -> None:
    """What a query reads lies on the host in every step."""
    caches = ragged("llama", (0,))
    batches = RaggedBatch(caches, 3, 5), ReadingBatch(caches, 3, 5, OracleTopK())
    assert ["reader" in str(batch.uncaptured) for batch in batches] == [False, True]
