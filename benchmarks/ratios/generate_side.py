"""transformers' side of a comparison: `generate` over the full cache, prompt after prompt, in our own environment.

python benchmarks/ratios/generate_side.py ASKED.json [--repeat N]
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from setup import read


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
    ids = torch.tensor([request.context + request.question], device=request.device)
    measured: dict[str, Any] = {"wall": [], "cpu": []}
    for repeat in range(options.repeat + 1):  # the first one warms up
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=request.new, min_new_tokens=request.new,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
        measured["answers"] = whole[:, ids.shape[1] :].tolist()
        if repeat:
            measured["wall"].append(time.perf_counter() - wall)
            measured["cpu"].append(time.process_time() - cpu)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
