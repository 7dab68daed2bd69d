"""Where the processor time of one model goes on one thread, beside the matrix speed of the machine and transformers.

    python benchmarks/ratios/one_model.py FOLDER [--tokens 2048] [--cells 16] [--steps 8] [--repeat 1]

Prints one JSON object: the speed of a large float32 product; seconds of a prefill of kvbench and of transformers, what
part of that speed the arithmetic of the prefill reaches, and seconds of its products, attention and the rest; seconds
of scoring (SnapKV); milliseconds of a step of one full cache (both), of a batch of cells at budgets of 0.5 to 0.1, and
of that batch once all but one cell have stopped.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from kvbench_side import HOSTS, loaded  # pyright: ignore
from setup import KEEP, POLICIES, Request, ids

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.linear_layers import PaddedLinear

SQUARE = 2048
WINDOWS = (64, 1)


class Attention(TorchDispatchMode):
    """Seconds of fused attention."""

    seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.process_time()
        result = func(*args, **(kwargs or {}))
        if "scaled_dot_product" in func.overloadpacket.__name__:
            self.seconds += time.process_time() - start
        return result


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--cells", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    vocabulary = json.loads(Path(options.folder, "config.json").read_text("utf-8"))["vocab_size"]
    prompt = ids(options.tokens, vocabulary, 1)
    model = loaded(Request(options.folder, "float32", "cpu", 1, prompt, [], options.steps, []))
    engine, tokens = model.engine, torch.tensor(prompt)
    plain: Any = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32, attn_implementation="sdpa")
    flops = arithmetic(plain.eval(), options.tokens)
    engine.prefill(tokens[:64], (16,))
    plain(tokens[None, :64], logits_to_keep=1)
    measured: dict[str, list[float]] = {}
    for _ in range(options.repeat):
        for name, seconds in once(engine, plain, tokens, options.cells, options.steps):
            measured.setdefault(name, []).append(seconds)
    seconds = {name: statistics.median(times) for name, times in measured.items()}
    speed = 2 * SQUARE**3 / min(measured["product"])
    print(
        json.dumps(
            {
                "tokens": options.tokens,
                "layers": type(engine.model.get_output_embeddings()).__name__,
                "gflops_of_a_product": round(speed / 1e9, 1),
                "prefill_share_of_it": round(flops / seconds["prefill"] / speed, 2),
                "seconds": {name: round(seconds[name], 3) for name in seconds if "step" not in name},
                "prefill": parts(engine, tokens),
                "ms_per_step": {
                    name: round(1000 * seconds[name] / options.steps, 1) for name in seconds if "step" in name
                },
            },
            indent=1,
        )
    )


def once(engine: Engine, plain: Any, tokens: torch.Tensor, cells: int, steps: int) -> Iterator[tuple[str, float]]:
    """Seconds of each part, both sides in turn."""

    def seconds(call: Any) -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    square, results = torch.randn(SQUARE, SQUARE), dict[str, Any]()
    yield "product", seconds(lambda: torch.nn.functional.linear(square, square))
    yield "prefill", seconds(lambda: results.update(ours=engine.prefill(tokens, WINDOWS)))
    read = {"use_cache": True, "logits_to_keep": 1}
    yield "prefill of transformers", seconds(lambda: results.update(theirs=plain(tokens[None], **read)))
    prefilled, cache = results["ours"], results["theirs"].past_key_values
    policies = [(HOSTS[name], int(len(tokens) * kept)) for kept in KEEP for name in POLICIES][:cells]
    evictions = [Eviction(*host, TokenBudget(pairs)) for host, pairs in policies]
    yield "scoring", seconds(lambda: evictions[0].decide(prefilled.cache))
    engine.max_batch, token = cells, torch.zeros(cells, 1, dtype=torch.long)
    one = RaggedBatch([prefilled.cache], cells, 2 * steps)
    many = RaggedBatch([eviction(prefilled.cache) for eviction in evictions], cells, 3 * steps)
    for batch in (one, many):
        engine.read(batch, token)
    yield "step of one", seconds(lambda: [engine.read(one, token) for _ in range(steps)])
    yield "step of transformers", seconds(lambda: [plain(token[:1], past_key_values=cache) for _ in range(steps)])
    yield "step of all", seconds(lambda: [engine.read(many, token) for _ in range(steps)])
    many.narrow([0])
    yield "step of the last", seconds(lambda: [engine.read(many, token) for _ in range(steps)])


def arithmetic(model: Any, tokens: int) -> float:
    """Floating point operations of a prefill: two per weight of a layer and token, and causal attention."""
    config = model.config
    weights = sum(part.weight.numel() for part in model.model.modules() if isinstance(part, torch.nn.Linear))
    width = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    return 2.0 * weights * tokens + 2.0 * config.num_hidden_layers * width * tokens**2


def parts(engine: Engine, tokens: torch.Tensor) -> dict[str, float]:
    """Seconds of the products, the attention and everything else in one more prefill."""
    starts, products, hooks = list[float](), list[float](), []
    for layer in engine.model.modules():
        if isinstance(layer, PaddedLinear):
            hooks.append(layer.register_forward_pre_hook(lambda *_: starts.append(time.process_time())))
            hooks.append(layer.register_forward_hook(lambda *_: products.append(time.process_time() - starts.pop())))
    begin = time.process_time()
    with Attention() as attention:
        engine.prefill(tokens, WINDOWS)
    total = time.process_time() - begin
    for hook in hooks:
        hook.remove()
    seconds = {"products": sum(products), "attention": attention.seconds}
    seconds["everything else"] = total - sum(seconds.values())
    return {name: round(value, 2) for name, value in seconds.items()}


if __name__ == "__main__":
    main()
