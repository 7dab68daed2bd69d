"""Cells that evict after every token: all of them in one batch with kernels, against PyTorch in float64."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.gpu_check.checks import OUTPUTS, Check
from kvbench.cache.attention import Rule
from kvbench.cache.kernels.choice import Kernels
from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.allocation.heads import ChunkHeads, SharedHeads
from kvbench.eviction.budget import Tokens
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention, AttentionMax, Cake, Finch, Lava, Vatp
from kvbench.eviction.scores.host import Caote, FastCaote
from kvbench.eviction.scores.keys import Cur, KeyDiff, KeyNorm, LagKV
from kvbench.eviction.scores.obcache import ExactRemoval, ExactZeroed, OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.random import Random
from kvbench.eviction.scores.recency import Recency
from kvbench.eviction.scores.score import Score
from kvbench.eviction.scores.triattention import QueryStatistics, TriAttention
from kvbench.extras.rkv.rkv import RKV
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.decode.evicting_cache import EvictingCache
from kvbench.models.rope import KeyReRotation, KeyRotation

H2O = Policy("h2o_obcache", window=8, recent=6, state="accumulate")
TOVA = Policy("tova_obcache", window=1)
POOLED = Policy("snapkv", window=8, recent=4, sink=2, pool=Pool("avg", 3))
STREAMING = Policy("streaming_llm", sink=2, recent=3, state="none")
BY_SCORE = replace(POOLED, name="cake", sink=0, slot_order="score")
RENUMBERED = replace(STREAMING, positions="cache")
GROUPS: dict[str, Sequence[tuple[Policy, Score]]] = {
    "sums of a row": [
        *((H2O, score) for score in (Attention(), ExactRemoval(), ExactZeroed(), OBCacheValue())),
        *((POOLED, score) for score in (OBCacheJoint(), AttentionMax(), OBCacheKey())),
        (replace(TOVA, heads=SharedHeads()), Attention()),
        (replace(POOLED, layout="query_heads"), OBCacheJoint()),
    ],
    "scores finished by kernels": [
        *((H2O, score) for score in (Caote(), RKV(), Finch())),
        *((POOLED, score) for score in (FastCaote(), Vatp(), Lava())),
        *((STREAMING, score) for score in (KeyDiff(), KeyNorm(), Cur(sink=1), LagKV(sink=2, lag=4))),
    ],
    "scores over all heads of a cell": [
        *((replace(H2O, heads=ChunkHeads(size=7)), score) for score in (Attention(), OBCacheJoint())),
        *((replace(policy, group="layer_mean"), Attention()) for policy in (H2O, TOVA)),
        (STREAMING, Random()),
    ],
    "slots by score": [(BY_SCORE, Cake()), (BY_SCORE, OBCacheJoint())],
    "slots by score and by position": [(BY_SCORE, Cake()), (POOLED, OBCacheJoint()), (H2O, Attention())],
    "positions in the cache": [(RENUMBERED, Recency()), (RENUMBERED, KeyNorm())],
    "positions in the cache and of tokens": [(RENUMBERED, Recency()), (STREAMING, KeyNorm()), (POOLED, OBCacheJoint())],
}
"""Policies and scores of the cells of a batch; with those of `_foreseeing` every kernel of decoding computes some."""


def decoding_checks(device: torch.device, small: bool) -> Iterator[Check]:
    """Outputs of every step, and the pairs that are left, in batches with budgets that differ by cell and head."""
    tokens, steps = (18, 12) if small else (1300, 60)
    with TemporaryDirectory() as folder:
        groups = GROUPS | {"statistics of queries": []}
        for (group, pairs), head_dim in product(groups.items(), (16,) if small else (64, 128)):
            pairs = pairs or _foreseeing(head_dim, Path(folder))
            for dtype in (torch.float32,) if small or "positions in the cache" in group else OUTPUTS:
                arrays = _drawn(len(pairs), tokens, steps, head_dim, dtype, device)
                wide = [[part.double() for part in parts] for parts in arrays]
                outputs, caches = _decode(pairs, tokens, arrays, "triton")
                expected, true_caches = _decode(pairs, tokens, wide, "torch")
                error = max((a.double() - b).abs().max().item() for a, b in zip(outputs, expected, strict=True))
                differing = sum(
                    cache.layers[0].offsets != true.layers[0].offsets
                    or not torch.equal(cache.layers[0].positions, true.layers[0].positions)
                    for cache, true in zip(caches, true_caches, strict=True)
                )
                name = f"decoding, {group}, {str(dtype).removeprefix('torch.')} head_dim {head_dim}"
                yield Check(f"{name}: cells of {len(pairs)} that hold other pairs", float(differing), 0.0)
                yield Check(f"{name}: outputs", error, 2 * OUTPUTS[dtype])


def _foreseeing(head_dim: int, folder: Path) -> Sequence[tuple[Policy, Score]]:
    """TriAttention with statistics of queries that are drawn, in a file."""
    draw, shape = torch.Generator().manual_seed(head_dim), (1, 4, head_dim // 2)
    mean = torch.randn(shape, generator=draw, dtype=torch.complex64)
    frequencies = 1e4 ** (-torch.arange(head_dim // 2) / (head_dim // 2))
    queries = QueryStatistics(mean, mean.abs() + 0.5, frequencies[None], False, "drawn", "drawn", {})
    queries.write(folder / f"{head_dim}")
    score = TriAttention(str(folder / f"{head_dim}"))
    return [(STREAMING, score), (RENUMBERED, score), (POOLED, OBCacheJoint())]


def _drawn(
    cells: int, tokens: int, steps: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> list[list[Tensor]]:
    """Queries, keys and values of a prompt, then of single tokens: 4 query heads over 2 KV heads."""
    draw = torch.Generator(device).manual_seed(head_dim)
    return [
        [torch.randn(cells, heads, new, head_dim, generator=draw, device=device).to(dtype) for heads in (4, 2, 2)]
        for new in (tokens, *[1] * steps)
    ]


def _decode(
    pairs: Sequence[tuple[Policy, Score]], tokens: int, arrays: Sequence[Sequence[Tensor]], kernels: Kernels
) -> tuple[list[Tensor], list[KVCache]]:
    """Outputs of every pass of a batch, and the caches that remain."""
    half = arrays[0][0].shape[-1] // 2
    frequencies = (1e4 ** (-torch.arange(half) / half)).to(arrays[0][0].device)
    rotation = KeyReRotation({0: KeyRotation(frequencies, interleaved=False)})
    cells = []
    for cell, (policy, score) in enumerate(pairs):
        most, heads = tokens // 2 + 3 * cell, 4 if policy.layout == "query_heads" else 2
        equal = policy.positions == "cache" or policy.heads.kind != "uniform" or policy.group == "layer_mean"
        capacity = most if equal else {0: tuple(most + 5 * head for head in range(heads))}
        evictor = IncrementalEviction(Eviction(policy, score, Tokens(most)), capacity)
        re_rotation = rotation if policy.positions == "cache" else None
        cells.append(EvictingCache(evictor, 1, re_rotation=re_rotation, kernels=kernels))
    batch = EvictingBatch(cells, len(cells), tokens + len(arrays))
    outputs = []
    for queries, keys, values in arrays:
        outputs.append(batch.attend(0, queries, keys, values, Rule(queries.shape[-1] ** -0.5)))
        batch.finish(queries.shape[2])
        batch.check()
    batch.settle()
    return outputs, [cell.freeze() for cell in cells]
