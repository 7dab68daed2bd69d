"""Layers on two devices, as `model.device_map` lays them: each layer's cache stays where its weights are.

Layers 0 and 2 lie on the CPU, layer 1 on a pretended GPU; hidden states follow, as accelerate moves them.
"""

import pytest
import torch

from benchmarks.first_hour.devices import STORES, logits, spread
from tests.models.conftest import make_engine
from tests.pretended_gpu import PretendedGpu


@pytest.mark.parametrize("store", STORES)
def test_the_cache_of_a_layer_stays_on_its_device(store: str) -> None:
    _, expected = logits(make_engine(prefill_chunk=16, max_batch=2), store)
    with PretendedGpu(interpret=False) as gpu:
        engine = make_engine(prefill_chunk=16, max_batch=2)
        spread(engine, torch.device("cuda"))
        places, spread_logits = logits(engine, store)
        read = spread_logits.tolist()
    assert places == ["cpu", "cuda", "cpu"] and not gpu.mixed
    assert torch.allclose(torch.tensor(read), expected, atol=1e-4)
