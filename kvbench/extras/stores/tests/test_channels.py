"""Channels of keys that ThinK removes."""

import pytest
import torch

from kvbench.eviction.step import Drop, Kind
from kvbench.extras.stores.channels import ThinK
from kvbench.extras.stores.quantized import CHANNELS
from tests.arrays import random_cache
from tests.extras.apply.made_up import TOKENS, evicting


@pytest.mark.parametrize("apply", [ThinK(ratio=0), ThinK(ratio=0.05)], ids=str)
def test_a_ratio_that_removes_no_channel_is_drop(apply: Kind) -> None:
    cache = random_cache(TOKENS, window=TOKENS)
    for pairs in (9, TOKENS):
        changed, dropped = (evicting(each, pairs)(cache).layers for each in (apply, Drop()))
        for layer, expected in zip(changed, dropped, strict=True):
            assert torch.equal(layer.keys, expected.keys) and torch.equal(layer.values, expected.values)
            assert CHANNELS not in layer.by_head


def test_channels_are_removed_where_nothing_is_evicted_too() -> None:
    (layer,) = evicting(ThinK(ratio=0.5, window=4, recent=3), TOKENS)(random_cache(TOKENS, layers=1)).layers
    keys, _ = layer.dense
    assert layer.by_head[CHANNELS].shape == (2, 5)
    assert ((keys[:, :-3] == 0).sum(dim=2) == 5).all() and (keys[:, -3:] != 0).all()
