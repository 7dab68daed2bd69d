"""Cells abreast in one cache are the cells alone; those that look across heads or refine their scores go alone."""

from dataclasses import replace

import pytest
import torch

from kvbench.config.settings import build
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.caote import Caote
from kvbench.eviction.scores.obcache import OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.score import Score
from kvbench.models import bridge
from kvbench.models.decode.batched_scores import merge_cells, sharing_key, split_cells
from kvbench.models.decode.evicting_batch import EvictingCache
from kvbench.models.engine import Engine
from tests.config.test_files import composed
from tests.models.conftest import tiny_llama

SCORES: tuple[Score, ...] = (Attention(), OBCacheValue(), OBCacheKey(), OBCacheJoint())
IDS = torch.arange(29) * 7 % 31


def policy(name: str, **fields: object) -> Policy:
    found = build("policy", composed(f"policy={name}")["policy"])
    return replace(found, **fields)


def stepping(policy: Policy, score: Score) -> IncrementalEviction:
    return IncrementalEviction(Eviction(policy, score, Tokens(11)), 11)


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize(
    "host",
    [
        policy("h2o", recent=4),
        policy("h2o", recent=4, layout="query_heads"),
        policy("tova"),
        policy("h2o", recent=4, positions="cache"),
    ],
    ids=["h2o", "query_heads", "tova", "renumbered"],
)
def test_cells_abreast_are_the_cells_alone(host: Policy, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvictingCache, "slots_key", None)
    model = tiny_llama()
    bridge.attach(model)
    engine = Engine(model, tile=5, max_length=100)
    each = [stepping(host, score) for score in SCORES]
    assert len({sharing_key(one) for one in each}) == 1 and sharing_key(each[0]) is not None
    together = engine.evicting_cache(merge_cells(each), 1, cells=4)
    found = engine.nll(IDS, [together], block)
    caches = split_cells(together.freeze(), 4)
    for number, one in enumerate(each):
        alone = engine.evicting_cache(one, 1)
        assert torch.equal(engine.nll(IDS, [alone], block)[0], found[number])
        for left, right in zip(alone.freeze().layers, caches[number].layers, strict=True):
            assert torch.equal(left.keys, right.keys) and torch.equal(left.positions, right.positions)
            assert left.offsets == right.offsets and left.query_heads == right.query_heads
            assert all(torch.equal(left.state[name], right.state[name]) for name in left.state)
        assert caches[number].bytes_held == alone.freeze().bytes_held
        assert together.peak_bytes == 4 * alone.peak_bytes and together.read_bytes == 4 * alone.read_bytes


@pytest.mark.parametrize(
    ("host", "score"),
    [
        (build("policy", composed("policy=tova", "policy.heads=shared")["policy"]), Attention()),
        (policy("h2o", recent=4, group="layer_mean"), Attention()),
        (policy("h2o", recent=4), Caote()),
        (policy("h2o", recent=4), Random()),
    ],
    ids=["shared", "layer_mean", "caote", "random"],
)
def test_what_is_not_by_head_goes_alone(host: Policy, score: Score) -> None:
    assert sharing_key(stepping(host, score)) is None


def test_other_policies_and_capacities_are_of_another_kind() -> None:
    one = stepping(policy("h2o", recent=4), Attention())
    assert sharing_key(one) != sharing_key(stepping(policy("h2o", recent=5), Attention()))
    assert sharing_key(one) != sharing_key(replace(one, capacity=10)) and sharing_key(one) != sharing_key(
        replace(one, decoding=True)
    )
