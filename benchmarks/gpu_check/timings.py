"""What kernels take, beside what the device could do: each line has a ratio, and a target where there is one.

A ratio says what it is to in `against`. Sizes are those of Llama-3.1-8B unless they are `small`, for the interpreter,
whose times mean nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu_check.clock import Times, times
from kvbench.cache.attention import AttentionParams, fused, observe
from kvbench.cache.kernels.choice import column_sums_of, ragged_decode_of
from kvbench.cache.kernels.column_sums import TERMS, Term
from kvbench.cache.kv_cache import ObservationWindow, from_dense
from kvbench.eviction.scores.attn import Attention
from kvbench.eviction.scores.obcache import OBCacheJoint

LAYERS = 32


@dataclass(frozen=True)
class Sizes:
    """Of a layer, its type and device; runs and warm-ups of what is measured."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    small: bool

    @property
    def scaling(self) -> float:
        """Of its logits."""
        return self.head_dim**-0.5

    def drawn(self, *shape: int) -> Tensor:
        """Random numbers, `head_dim` of them a place."""
        return torch.randn(*shape, self.head_dim, device=self.device).to(self.dtype)

    def times(self, work: Callable[[], object], runs: int = 25, warm: int = 3) -> Times:
        """Of this work."""
        return times(work, self.device, *((2, 1) if self.small else (runs, warm)))


@dataclass(frozen=True)
class Timing:
    """A measured part. `value` is in `unit`: times as large as what `against` names, or a rate."""

    name: str
    times: Times
    value: float
    unit: str
    against: str
    target: str = ""
    met: bool | None = None


def timings(device: torch.device, small: bool) -> Iterator[Timing]:
    """All of them, the copy bandwidth first: others are compared with it."""
    layer = Sizes(4, 2, 64, torch.float32, device, small) if small else Sizes(32, 8, 128, torch.bfloat16, device, small)
    size = 2**20 if small else 2**29
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    copied = layer.times(lambda: target.copy_(source))
    bandwidth = 2 * size / copied.middle / 1e6
    del source, target
    yield Timing(f"copy of {size >> 20} MiB", copied, bandwidth, "GB/s", "read and write counted")
    yield from _sums(layer, bandwidth)
    yield from _every_row(layer)
    yield from _decode(layer)
    yield from _gather(layer, bandwidth)
    yield from _prefill(layer)


def _sums(of: Sizes, bandwidth: float) -> Iterator[Timing]:
    """Window scores of a layer, as ratio to reading its keys and values once."""
    tokens = 100 if of.small else 32768
    kernel = column_sums_of("triton")
    assert kernel is not None
    keys, values = of.drawn(2, of.kv_heads, tokens)
    once = keys.nbytes * 2 / bandwidth / 1e6
    for rows in (16,) if of.small else (16, 32, 64):
        queries = of.drawn(of.heads, rows)
        seen = observe(queries, queries, keys, AttentionParams(of.scaling))
        arrays = (queries, keys, values, seen.outputs.float(), seen.lse)
        wanted: dict[str, tuple[Term, ...]] = {"attn": ("attn",), "obcache_joint": ("obcache_joint",), "all": TERMS}
        for label, terms in wanted.items():
            taken = of.times(lambda a=arrays, t=terms: kernel(*a, of.scaling, t))
            ratio, layers = taken.middle / once, LAYERS * taken.middle
            goals = {f"{LAYERS} layers <= 5 ms": layers <= 5}
            if rows <= 32:
                goals["<= 1.67"] = ratio <= 1.67
            name = f"column sums, {tokens} tokens, W={rows}, {label}"
            against = f"K and V read once ({LAYERS} layers: {layers:.2f} ms)"
            yield Timing(name, taken, ratio, "x", against, " and ".join(goals), all(goals.values()))
        layer, wide = from_dense(0, of.heads, keys, values), replace(seen, outputs=seen.outputs.float())
        plain = of.times(lambda r=wide, c=layer: OBCacheJoint()(c, r, "sum"))
        name = f"plain PyTorch, {tokens} tokens, W={rows}, obcache_joint"
        yield Timing(name, plain, plain.middle / once, "x", "K and V read once")


def _every_row(of: Sizes) -> Iterator[Timing]:
    """Attention of every query of a prompt is summed."""
    tokens = 70 if of.small else 8192
    queries, (keys, values) = of.drawn(of.heads, tokens), of.drawn(2, of.kv_heads, tokens)
    layer = from_dense(0, of.heads, keys, values)
    rows = ObservationWindow(queries, queries, torch.full((of.heads, tokens), 9.0, device=of.device), of.scaling)
    plain = of.times(lambda: Attention()(layer, rows, "sum"), 5, 1)
    fast = of.times(lambda: Attention()(layer, replace(rows, kernels="triton"), "sum"))
    against = f"plain PyTorch, chunk by chunk ({plain.middle:.4g} ms)"
    yield Timing(f"column sums, all {tokens} rows, attn", fast, fast.middle / plain.middle, "x", against)


def _lengths(segments: int, mean: int) -> list[int]:
    """Ragged lengths with this mean, the longest several times the shortest."""
    drawn = torch.rand(segments, generator=torch.Generator().manual_seed(mean)).pow(2) + 0.1
    lengths = (drawn / drawn.sum() * segments * mean).long()
    lengths[0] += segments * mean - int(lengths.sum())
    return lengths.tolist()


def _decode(of: Sizes) -> Iterator[Timing]:
    """One token's attention over what is kept, against dense attention over as many pairs and over a full cache."""
    decode = ragged_decode_of("triton")
    assert decode is not None
    attend = torch.nn.functional.scaled_dot_product_attention

    def ragged(cells: int, mean: int) -> Times:
        lengths = _lengths(cells * of.kv_heads, mean)
        held = torch.tensor(lengths, device=of.device)
        keys, values = of.drawn(2, sum(lengths))
        queries = of.drawn(len(lengths), of.heads // of.kv_heads)
        rest = (queries, keys, values, held.cumsum(0) - held, held, of.scaling)
        return of.times(lambda: decode(*rest, longest=max(lengths)))

    def dense(cells: int, tokens: int) -> Times:
        keys, values = of.drawn(2, cells, of.kv_heads, tokens)
        queries = of.drawn(cells, of.heads, 1)
        return of.times(lambda: attend(queries, keys, values, scale=of.scaling, enable_gqa=True))

    for cells, mean in ((1, 90),) if of.small else ((1, 4096), (8, 4096), (1, 32768)):
        fast, other = ragged(cells, mean), dense(cells, mean)
        ratio = fast.middle / other.middle
        name = f"ragged decode, {cells} cells x {of.kv_heads} heads, {mean} pairs each on average"
        yield Timing(
            name, fast, ratio, "x", f"dense cache of as many ({other.middle:.4g} ms)", "<= 1.15", ratio <= 1.15
        )
    full, kept = (300, 50) if of.small else (131072, 1024)
    fast, short, long = ragged(1, kept), dense(1, kept), dense(1, full)
    ratio = fast.middle / short.middle
    name, against = f"decode at {full} tokens, {kept} kept a head", f"a cache of {kept} tokens ({short.middle:.4g} ms)"
    yield Timing(name, fast, ratio, "x", against, "<= 1.2", ratio <= 1.2)
    gain = long.middle / fast.middle
    yield Timing(f"dense decode over all {full} tokens", long, gain, "x", f"the same over {kept} kept pairs a head")


def _gather(of: Sizes, bandwidth: float) -> Iterator[Timing]:
    """Compaction and append of a layer: bytes read and written by the time they take."""
    tokens = 500 if of.small else 131072
    keys, values = of.drawn(2, of.kv_heads, tokens)
    layer = from_dense(0, of.heads, keys, values)
    for share in (0.1, 0.5):
        kept = torch.rand(of.kv_heads, tokens, device=of.device) < share
        pairs, lengths = kept.flatten().nonzero()[:, 0], kept.sum(1).tolist()
        taken = of.times(lambda p=pairs, n=lengths: layer.gather(p, n))
        rate = 4 * len(pairs) * of.head_dim * keys.itemsize / taken.middle / 1e6
        name = f"gather of {share:.0%} of {tokens} tokens x {of.kv_heads} heads"
        yield Timing(name, taken, rate, "GB/s", f"{rate / bandwidth:.0%} of the copy bandwidth")
        masked = of.times(lambda k=kept: layer.select(k))
        yield Timing("  the same from a mask", masked, masked.middle / taken.middle, "x", "the gather alone")
    new = of.drawn(of.kv_heads, 1)
    taken = of.times(lambda: layer.append(new, new, tokens))
    rate = 2 * (keys.nbytes + values.nbytes) / taken.middle / 1e6
    yield Timing("append of a token", taken, rate, "GB/s", f"{rate / bandwidth:.0%} of the copy bandwidth")


def _prefill(of: Sizes) -> Iterator[Timing]:
    """Causal attention of a layer, and what recording a window adds."""
    for tokens in (200,) if of.small else (8192, 32768):
        queries, (keys, values) = of.drawn(of.heads, tokens), of.drawn(2, of.kv_heads, tokens)
        taken = of.times(lambda q=queries, k=keys, v=values: fused(q, k, v, AttentionParams(of.scaling)), 8, 2)
        rate = 2 * of.heads * tokens * tokens * of.head_dim / taken.middle / 1e9
        yield Timing(f"prefill attention of a layer, {tokens} tokens", taken, rate, "TFLOP/s", "half of the products")
        seen = of.times(lambda w=queries[:, -16:], k=keys: observe(w, w, k, AttentionParams(of.scaling)), 8, 2)
        share = seen.middle / taken.middle
        yield Timing(f"  recording 16 rows of {tokens}", seen, share, "x", "the attention itself")
