"""Ratios on a CPU: window scores against OBCache's Algorithm 1 written naively, ragged against padded decoding.

    python benchmarks/kernel_ratios.py [--repeat 3] [--tokens 32768] [--out FOLDER]

Scores: of a layer with the heads of Llama-3.1-8B in float32, one thread. `naive` is the algorithm as printed: keys and
values repeated for every query head, then the window's weights, its logits and the distances of every value to every
output, each array whole. `chunked` is what kvbench runs, `kvbench.eviction.scores.window` by way of the score.
Decoding: a token of each of several cells whose heads kept different numbers of pairs, `flat` by kvbench's tile, padded
to the longest by torch's attention with a mask. Both ways must agree before they are timed.

Seconds of the process's own processor time and of the wall, medians; memory is the most allocated beyond the inputs.
With --out they are written to FOLDER/<processor>/kernel_ratios.json and .md.
"""

import argparse
import json
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from kvbench.cache.attention import AttentionParams, causal, observe
from kvbench.cache.kv_cache import KVCache, LayerCache, from_dense
from kvbench.eviction.scores.obcache import OBCacheJoint, OBCacheKey, OBCacheValue
from kvbench.eviction.scores.score import Score
from kvbench.models.decode.batch import RaggedBatch

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CLOSE = 1e-3
"""Largest difference of two ways, in parts of the largest number: both sum in float32, the naive one cancels."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--windows", type=int, nargs="+", default=[16])
    parser.add_argument("--out", help="folder of results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for window in options.windows for row in scores(options.tokens, window, options.repeat)]
    rows += decoding(options.tokens // 4, options.repeat)
    machine = processor()
    text = report(machine, options.repeat, rows)
    print(text)
    if options.out:
        folder = Path(options.out) / re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
        folder.mkdir(parents=True, exist_ok=True)
        about = {"processor": machine, "torch": torch.__version__, "threads": 1, "repeats": options.repeat}
        text = json.dumps({**about, "python": platform.python_version(), "rows": rows}, indent=1)
        (folder / "kernel_ratios.json").write_text(text + "\n", "utf-8")
        (folder / "kernel_ratios.md").write_text(text + "\n", "utf-8")


def scores(tokens: int, window: int, repeat: int) -> list[dict[str, Any]]:
    """Algorithm 1 against the scores of kvbench, each of the three and all of them."""
    layer, rows_of_window = random_layer(tokens, window), []
    each: dict[str, tuple[Score, ...]] = {
        "value": (OBCacheValue(),),
        "key": (OBCacheKey(),),
        "joint": (OBCacheJoint(),),
    }
    for name, scorers in each.items():
        rows = layer.observed(window)
        (chunked,) = (score(layer, rows, "sum") for score in scorers)
        agree(f"obcache_{name}", chunked, algorithm_1(layer, name))
        slow = measured(lambda n=name: algorithm_1(layer, n), repeat)
        fast = measured(lambda a=scorers: [score(layer, layer.observed(window), "sum") for score in a], repeat)
        rows_of_window.append(compared(f"obcache_{name}, W={window}, N={tokens}", "naive", slow, "chunked", fast))
    return rows_of_window


def algorithm_1(layer: LayerCache, form: str) -> Tensor:
    """OBCache's Algorithm 1 over the window: the score of every pair for every query head, [heads, tokens]."""
    rows = layer.windows[0]
    keys, values = (part.repeat_interleave(HEADS // KV_HEADS, dim=0) for part in layer.dense)
    count, tokens = rows.queries.shape[1], keys.shape[1]
    logits = rows.queries @ keys.mT * rows.scaling
    hidden = torch.ones(count, tokens, dtype=torch.bool).triu(tokens - count + 1)
    weights = logits.masked_fill(hidden, -torch.inf).softmax(-1)
    logits = logits.masked_fill(hidden, 0)
    by_value = weights.square() * values.square().sum(-1)[:, None]
    if form == "value":
        return by_value.sum(1)
    outputs = weights @ values
    by_key = (weights * logits).square() * torch.cdist(outputs, values).square()
    if form == "key":
        return by_key.sum(1)
    both = values.square().sum(-1)[:, None] - outputs @ values.mT
    return (by_value + by_key + 2 * weights.square() * logits * both).sum(1)


def decoding(tokens: int, repeat: int) -> list[dict[str, Any]]:
    """A step of several cells whose heads are ragged, as AdaKV's budgets make them: by tile, and padded with a mask."""
    generator, cells = torch.Generator().manual_seed(1), 8
    full = random_layer(tokens, 1)
    shares = torch.distributions.Dirichlet(torch.full((KV_HEADS,), 0.2)).sample((cells,))
    lengths = (shares * KV_HEADS * 0.2 * tokens).long().clamp(16, tokens)
    cut = [full.select(kept(length.tolist(), tokens)) for length in lengths]
    queries = torch.randn(cells, HEADS, 1, HEAD_DIM, generator=generator)
    new_keys, new_values = torch.randn(2, cells, KV_HEADS, 1, HEAD_DIM, generator=generator)
    longest = int(lengths.max()) + 1
    keys, values = torch.zeros(2, cells, KV_HEADS, longest, HEAD_DIM)
    seen = torch.zeros(cells, KV_HEADS, 1, longest, dtype=torch.bool)
    for cell, layer in enumerate(cut):
        for head, (start, stop) in enumerate(zip(layer.offsets, layer.offsets[1:], strict=False)):
            there = slice(0, stop - start)
            keys[cell, head, there], values[cell, head, there] = layer.keys[start:stop], layer.values[start:stop]
            seen[cell, head, :, there] = True
    keys[:, :, -1:], values[:, :, -1:], seen[..., -1] = new_keys, new_values, True
    tile, rule = RaggedBatch([KVCache((layer,), tokens) for layer in cut], cells, 1), AttentionParams(HEAD_DIM**-0.5)
    grouped = queries.view(cells, KV_HEADS, HEADS // KV_HEADS, HEAD_DIM)
    attend = torch.nn.functional.scaled_dot_product_attention

    def padded() -> Tensor:
        return attend(grouped, keys, values, attn_mask=seen, scale=rule.scaling).view(queries.shape)

    def flat() -> Tensor:
        return tile.attend(0, queries, new_keys, new_values, rule)

    agree("decoding", flat(), padded())
    name = f"decoding {cells} cells, {KV_HEADS} heads of {int(lengths.min())} to {int(lengths.max())} pairs"
    row = compared(name, "padded", measured(padded, 10 * repeat), "flat", measured(flat, 10 * repeat))
    held = {"padded": keys.nbytes + values.nbytes, "flat": sum(tile.peak_bytes)}
    return [row | {f"{way} held MiB": round(size / 2**20, 1) for way, size in held.items()}]


def kept(counts: list[int], tokens: int) -> Tensor:
    """A mask that keeps so many pairs of each head."""
    mask = torch.zeros(len(counts), tokens, dtype=torch.bool)
    for head, count in enumerate(counts):
        mask[head, torch.randperm(tokens, generator=torch.Generator().manual_seed(head))[:count]] = True
    return mask


def random_layer(tokens: int, window: int) -> LayerCache:
    """A layer with its newest rows as evidence."""
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, KV_HEADS, tokens, HEAD_DIM, generator=generator)
    queries, scaling = torch.randn(HEADS, window, HEAD_DIM, generator=generator), HEAD_DIM**-0.5
    outputs = causal(queries, keys, values, scaling)
    return from_dense(0, HEADS, keys, values, (observe(queries, outputs, keys, AttentionParams(scaling)),))


def agree(what: str, outputs: Tensor, reference: Tensor) -> None:
    """Exit where two ways differ: a fast wrong answer is no result."""
    error = ((outputs - reference).abs().max() / reference.abs().max()).item()
    if not error < CLOSE:
        sys.exit(f"{what}: the two ways differ by {error:.1e} of the largest number: nothing to time")


def measured(work: Callable[[], object], repeat: int) -> dict[str, float]:
    """Median seconds of the process and of the wall, the spread of the former, and the most MiB allocated at a time."""
    work()
    own, wall = [], []
    for _ in range(repeat):
        starts = time.process_time(), time.perf_counter()
        work()
        own.append(time.process_time() - starts[0])
        wall.append(time.perf_counter() - starts[1])
    middle = statistics.median(own)
    return {"cpu": middle, "least": min(own), "most": max(own), "wall": statistics.median(wall), "mib": extra(work)}


def extra(work: Callable[[], object]) -> float:
    """Most MiB that torch held at a time beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    assert recorded.profiler is not None and recorded.profiler.kineto_results is not None
    events: list[Any] = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20


def compared(name: str, old: str, slow: dict[str, float], new: str, fast: dict[str, float]) -> dict[str, Any]:
    """A row of the table."""
    return {
        "what": name,
        "ratio": round(slow["cpu"] / fast["cpu"], 2),
        "memory": round(fast["mib"] / slow["mib"], 4),
        old: {key: round(value, 5) for key, value in slow.items()},
        new: {key: round(value, 5) for key, value in fast.items()},
    }


def report(machine: str, repeat: int, rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        f"{machine}, torch {torch.__version__}, one thread, medians of {repeat} runs (decoding: {10 * repeat})",
        "",
        "| what | way | s of the processor (least to most) | s of the wall | MiB allocated | times as fast | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ways = [(way, timing) for way, timing in row.items() if isinstance(timing, dict)]
        for way, timing in ways:
            spread = f"{timing['cpu']:.4g} ({timing['least']:.4g} to {timing['most']:.4g})"
            ratio = f"{row['ratio']:.1f} | {row['memory']:.1%}" if way == ways[-1][0] else " | "
            taken = f"{spread} | {timing['wall']:.4g} | {timing['mib']:.0f}"
            lines.append(f"| {row['what']} | {way} | {taken} | {ratio} |")
    return "\n".join(lines)


def processor() -> str:
    """What the processor calls itself."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text("utf-8"), re.M) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
