"""Bytes and processor time per token of long answers: caches that are evicted from while they grow, and a full one.

    python benchmarks/long_answers.py [--methods rkv triattention full] [--tokens 2048] [--budget 512] [--every 128]
        [--write FOLDER]

A random Llama of two layers reads 256 tokens and then an answer of random tokens, one by one, on one thread. R-KV
evicts after each buffer of `--every` tokens, TriAttention after each window. A line per 1024 tokens: the bytes of the
cache (pairs, positions, state) at their most since the line before, the resident memory of the process, and processor
milliseconds per token, beside what a token takes right afterwards in an answer that was stopped after its first 1024
tokens (`full`: before its first): other work slows both. Exits with 1 if a bounded cache ever holds more than its
budget and one buffer.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvbench.cache.kv_cache import KVCache
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.incremental import IncrementalEviction, capacity_after
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.extras.heads.calibration import before_rotation
from kvbench.extras.heads.triattention import QueryStatistics, TriAttention
from kvbench.extras.rkv.rkv import RKV
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.decode.evicting_batch import EvictingBatch
from kvbench.models.engine import Engine
from kvbench.models.key_rotation import key_rotations

PROMPT, SPAN = 256, 1024
METHODS = ("rkv", "triattention", "full")
COLUMNS = ("method", "tokens", "cache KiB", "resident MiB", "ms per token", "ms in a short answer")


def main() -> int:
    """Measure, print and write a table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 2048), ("budget", 512), ("every", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--write", type=Path, help="other methods of the file that is there stay")
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine, ids = tiny_engine(PROMPT + options.tokens + 1), tokens(PROMPT)
    prompt = engine.prefill(ids, {8, PROMPT}).cache
    pair = prompt.bytes_allocated // prompt.pairs
    layers, heads = len(prompt.evictable), prompt.evictable[0].cache_heads
    most = (options.budget + options.every) * layers * heads * pair
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    machine = f"{platform.processor() or platform.machine()}, 1 thread, load {load}, torch {torch.__version__}"
    head_dim = prompt.evictable[0].keys.shape[1]
    sizes = f"{layers} layers, {heads} KV heads of {head_dim}, float32; budget {options.budget}"
    print(f"{machine}\n{sizes}, evicted every {options.every}: at most {most / 1024:.0f} KiB\n" + "  ".join(COLUMNS))
    lines, code = [], 0
    for method in options.methods:
        for line in measured(engine, prompt, method, options):
            print("  ".join(f"{value:>{len(name)}}" for name, value in line.items()), flush=True)
            lines.append(line)
            code |= method != "full" and line["cache KiB"] > most / 1024 + 0.1
    if options.write is not None:
        file = options.write / "long_answers.json"
        before = json.loads(file.read_text("utf-8")) if file.is_file() else []
        lines = [line for line in before if line["method"] not in options.methods] + [
            line | {"every": options.every, "sizes": sizes, "machine": machine} for line in lines
        ]
        file.write_text("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n", "utf-8")
    return code


def measured(engine: Engine, prompt: KVCache, method: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line per `SPAN` tokens of an answer."""
    cache, begun = None, prompt

    def batch_of(begun: KVCache, room: int) -> RaggedBatch | EvictingBatch:
        nonlocal cache
        if method == "full":
            return RaggedBatch([begun], engine.max_batch, room)
        cache = engine.evicting_cache(evictor, options.every, begun)
        return EvictingBatch([cache], engine.max_batch, room)

    if method != "full":
        eviction = rkv(options.budget) if method == "rkv" else triattention(engine, prompt, options.budget)
        decision = eviction.decide(prompt)
        evictor = IncrementalEviction(eviction, capacity_after(eviction, prompt, decision), decoding=True)
        begun = evictor.remember(prompt, decision, eviction.evict(prompt, decision))
    batch, pair = batch_of(begun, options.tokens), prompt.bytes_allocated / prompt.num_tokens
    long = cache
    for count, part in enumerate(tokens(options.tokens).split(SPAN), 1):
        spent = timed(engine, batch, part)
        read = min(count * SPAN, options.tokens)
        held = pair * (PROMPT + read) if long is None else long.peak_bytes
        if long is not None and isinstance(batch, EvictingBatch):
            long.peak_bytes = 0  # the most of the next span
            if count == 1:
                batch.return_layers()
                begun = long.freeze()
        short = timed(engine, batch_of(begun, options.every), part[: options.every])
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").is_file() else 0
        resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        values = (method, read, round(held / 1024, 1), round(resident), round(spent, 3), round(short, 3))
        yield dict(zip(COLUMNS, values, strict=True))


def timed(engine: Engine, batch: RaggedBatch | EvictingBatch, part: torch.Tensor) -> float:
    """Processor milliseconds per token."""
    begin = time.process_time()
    for token in part:
        engine.read(batch, token.view(1, 1))
        batch.check()
    return 1000 * (time.process_time() - begin) / len(part)


def tiny_engine(max_length: int) -> Engine:
    """A random Llama on the bridge, one cell a batch."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    bridge.attach(model)
    return Engine(model, max_batch=1, max_length=max_length)


def tokens(count: int) -> torch.Tensor:
    """Random tokens."""
    return torch.randint(1, 97, (count,), generator=torch.Generator().manual_seed(count))


def rkv(budget: int) -> Eviction:
    """kvbench/extras/rkv/conf/policy/rkv.yaml."""
    return Eviction(Policy("rkv", window=8, reduce="mean", pool=Pool("max", 7), recent=8), RKV(), TokenBudget(budget))


def triattention(engine: Engine, prompt: KVCache, budget: int) -> Eviction:
    """conf/policy/triattention.yaml, with statistics of the prompt."""
    rotations = key_rotations(engine.model, "{}")
    numbers = torch.stack(
        [before_rotation(layer.observed(PROMPT).queries, rotations[layer.index]) for layer in prompt.evictable]
    )
    frequencies = torch.stack([rotations[layer.index].frequencies for layer in prompt.evictable])
    mean, size = numbers.mean(dim=2).to(torch.complex64), numbers.abs().mean(dim=2).float()
    file = Path("build") / f"long_answers_{os.getpid()}.safetensors"
    file.parent.mkdir(exist_ok=True)
    QueryStatistics(mean, size, frequencies, False, "random", "", {}).write(file)
    score = TriAttention(str(file))
    file.unlink()
    return Eviction(Policy("triattention", window=1, state="none"), score, TokenBudget(budget))


if __name__ == "__main__":
    sys.exit(main())
