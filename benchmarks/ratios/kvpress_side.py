# ruff: noqa: E402 - stand-ins come before kvpress is imported
"""kvpress' side of a comparison: one cell after another, each with a prefill of its own, as its evaluate.py does.

    PYTHON_OF_ITS_OWN benchmarks/ratios/kvpress_side.py ASKED.json [--repeat N]

Runs in an environment with kvpress 0.5.5 and a transformers before 5.3. The calls are those of its pipeline, from token
ids on: press the context, read the question, decode greedily. Prints one JSON object like kvbench_side.py.
"""

import argparse
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

for unused in ("datasets", "fire", "requests"):  # kvpress imports them for presses that are not compared
    if find_spec(unused) is None:
        sys.modules[unused] = ModuleType(unused)
        sys.modules[unused].load_dataset = None  # type: ignore[attr-defined]

import torch
from kvpress import AdaKVPress, KeyDiffPress, KnormPress, SnapKVPress, StreamingLLMPress, TOVAPress  # pyright: ignore[reportMissingImports]  # not in our environment
from kvpress.pipeline import KVPressTextGenerationPipeline  # pyright: ignore[reportMissingImports]  # not in our environment
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from setup import Request, read

PRESSES = {
    "snapkv": SnapKVPress,
    "tova": TOVAPress,
    "key_norm": KnormPress,
    "key_diff": KeyDiffPress,
    "streaming_llm": StreamingLLMPress,
    "ada_snapkv": lambda ratio: AdaKVPress(SnapKVPress(ratio)),
}


class Pipeline(KVPressTextGenerationPipeline):
    """kvpress' pipeline from token ids to token ids."""

    def __init__(self, model: Any) -> None:
        words = SimpleNamespace(decode=lambda ids, **options: " ".join(map(str, ids.tolist())))
        self.model, self.tokenizer = model, words


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("request")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    request = read(options.request)
    torch.set_num_threads(request.threads)
    dtype = getattr(torch, request.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(request.folder, dtype=dtype, attn_implementation="sdpa")
    model = model.to(request.device).eval()
    pipeline = Pipeline(model)
    run(pipeline, request, request.cells[:1])  # warm: kernels, allocator
    measured: dict[str, Any] = {"wall": [], "cpu": []}
    for _ in range(options.repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        measured["answers"] = run(pipeline, request, request.cells)
        measured["wall"].append(time.perf_counter() - wall)
        measured["cpu"].append(time.process_time() - cpu)
    print(json.dumps(measured))


@torch.inference_mode()
def run(pipeline: Pipeline, request: Request, cells: list[tuple[str, int | None]]) -> list[list[int]]:
    """The answer of every cell."""
    answers = []
    for policy, pairs in cells:
        press = None if pairs is None else PRESSES[policy](ratio(len(request.context), pairs))
        read = {"context_ids": torch.tensor([request.context]), "questions_ids": [torch.tensor([request.question])]}
        (answer,) = pipeline._forward(read, max_new_tokens=request.new, press=press)
        answers.append([int(word) for word in answer.split()])
        if request.device.startswith("cuda"):
            torch.cuda.synchronize()
    return answers


def ratio(tokens: int, pairs: int) -> float:
    """The compression ratio that makes kvpress keep so many pairs, half a pair away from where it rounds."""
    return 1 - (pairs + 0.5) / tokens


if __name__ == "__main__":
    main()
