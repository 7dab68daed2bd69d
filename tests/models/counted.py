"""Launches and waits of one layer on the pretended GPU: the difference of models with four and with two layers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvbench.eviction.allocation.heads import MixHeads
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.extras.gpu_decoding.decoding import GpuDecoding
from kvbench.models import bridge
from kvbench.models.decode.decoding import decoding_of
from kvbench.models.engine import Engine
from tests.pretended_gpu import PretendedGpu

POOL = Pool("max", 5)
UNIFORM = Policy("uniform", window=8, recent=8, pool=POOL)
RAGGED = Policy("ragged", window=8, recent=8, pool=POOL, heads=MixHeads(alpha=0.2))
TOKENS = 160


@dataclass(frozen=True)
class Count:
    """Launched operations and waits of a layer, and of a pass beside its layers."""

    launches: float
    waits: float
    other_launches: float
    other_waits: float


def small_engine(layers: int, kv_heads: int = 4, cuda_graph: str = "auto", **options: Any) -> Engine:
    """A random Llama in bfloat16 on the pretended GPU, whose batches lie in memory of their own."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2 * kv_heads,
        num_key_value_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=9000,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval().to("cuda")
    bridge.attach(model)
    engine = Engine(model, **{"max_batch": 4, **options})
    decoding = decoding_of(engine, cuda_graph)
    assert isinstance(decoding, GpuDecoding)
    engine.decoding = replace(decoding, rooms=None)
    return engine


def counted(work: Callable[[PretendedGpu, int], None]) -> dict[str, Count]:
    """The counts of every section of `work`, which is called with a number of layers."""
    gpus = {}
    for layers in (2, 4):
        with PretendedGpu(interpret=False) as gpus[layers]:
            work(gpus[layers], layers)
        assert not gpus[layers].mixed, gpus[layers].mixed

    def split(two: int, four: int) -> tuple[float, float]:
        return (four - two) / 2, 2 * two - four

    counts = {}
    for name in gpus[4].launches:
        launches, rest = split(*(gpu.launched(name) for gpu in gpus.values()))
        waits, other = split(*(gpu.waited(name) for gpu in gpus.values()))
        counts[name] = Count(launches, waits, rest, other)
    return counts
