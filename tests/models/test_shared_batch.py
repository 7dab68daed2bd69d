"""The two stores: one full cache behind masks answers like copies of what each cell keeps."""

import pytest
import torch

from kvbench.cache.attention import LOGITS_AT_ONCE
from kvbench.cache.kv_cache import KVCache, compact
from kvbench.models import bridge
from kvbench.models.decode import shared_batch as shared_tile
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.shared_batch import SharedCacheBatch
from kvbench.models.engine import Engine
from tests.models.families import tiny

TAIL = torch.tensor([[4, 9, 33, 7, 61], [90, 5, 5, 17, 3], [1, 2, 3, 4, 5]])
Masks = tuple[torch.Tensor, ...]


def masks(full: KVCache, seed: int, heads: int) -> Masks:
    """Ragged: every head keeps another share, one of them nothing."""
    draw = torch.Generator().manual_seed(seed)
    shares = torch.rand(len(full.evictable), heads, 1, generator=draw) * 0.8
    shares[0, 0] = 0
    return tuple((torch.rand(len(full.evictable), heads, full.num_tokens, generator=draw) < shares).unbind())


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(3, 97, (61,), generator=torch.Generator().manual_seed(3))


def engine_of(family: str, dtype: torch.dtype) -> Engine:
    model = tiny(family, dtype)
    bridge.attach(model)
    return Engine(model, block=13, tile=3, max_length=512)


def read(engine: Engine, tile: RaggedBatch | SharedCacheBatch) -> torch.Tensor:
    """Logits after a question of three tokens and after each of two more."""
    steps = [engine.read(tile, TAIL[:, :3]), engine.read(tile, TAIL[:, 3:4]), engine.read(tile, TAIL[:, 4:])]
    return torch.stack(steps)[:, : tile.num_active]


@pytest.mark.parametrize("heads", [2, 6], ids=["kv_heads", "query_heads"])
@pytest.mark.parametrize(
    ("family", "dtype", "tolerance"),
    [
        ("llama", torch.float64, 1e-12),
        ("gemma2", torch.float64, 1e-12),
        ("llama", torch.float32, 1e-4),
        ("gpt_oss", torch.float32, 1e-4),  # its experts know no float64 in transformers
    ],
)
def test_masks_over_one_cache_are_copies_of_what_is_kept(
    family: str, heads: int, dtype: torch.dtype, tolerance: float, prompt: torch.Tensor
) -> None:
    engine = engine_of(family, dtype)
    full = engine.prefill(prompt).cache
    kept = [masks(full, seed, heads) for seed in (0, 1)]
    flat = read(engine, RaggedBatch([compact(full, layer_masks) for layer_masks in kept], 3, 5))
    shared = read(engine, SharedCacheBatch(full, kept, 3, 5))
    assert (flat - shared).abs().max() < tolerance
    everything = read(
        engine,
        SharedCacheBatch(full, [tuple(torch.ones_like(mask) for mask in layer_masks) for layer_masks in kept], 3, 5),
    )
    assert (everything - shared).abs().max() > 1e-2, "the masks must matter"


def test_bits_do_not_depend_on_the_cells_beside(prompt: torch.Tensor) -> None:
    engine = engine_of("llama", torch.float32)
    full = engine.prefill(prompt).cache
    kept = [masks(full, seed, 2) for seed in (0, 1, 2)]
    together = read(engine, SharedCacheBatch(full, kept, 3, 5))
    for count in (1, 2):
        assert torch.equal(read(engine, SharedCacheBatch(full, kept[:count], 3, 5)), together[:, :count])


def test_a_long_question_is_read_a_few_tokens_at_a_time(prompt: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("gemma2", torch.float64)
    full = engine.prefill(prompt).cache
    kept = [masks(full, seed, 2) for seed in (0, 1)]
    whole = read(engine, SharedCacheBatch(full, kept, 3, 5))
    assert LOGITS_AT_ONCE > 3 * 6 * (61 + 5) * 3
    monkeypatch.setattr(shared_tile, "LOGITS_AT_ONCE", 3 * 6 * (61 + 5) * 2)
    assert (read(engine, SharedCacheBatch(full, kept, 3, 5)) - whole).abs().max() < 1e-12


def test_bytes_are_those_that_are_held(prompt: torch.Tensor) -> None:
    engine = engine_of("gemma2", torch.float32)
    full = engine.prefill(prompt).cache
    tile = SharedCacheBatch(full, [masks(full, seed, 2) for seed in (0, 1)], 3, 5)
    a_mask, a_tail = 2 * 2 * 61, 4 * 2 * 5 * (full.layers[0].keys.shape[1]) * 2 * 4
    assert tile.peak_bytes == [full.bytes_held + a_mask + a_tail] * 2
