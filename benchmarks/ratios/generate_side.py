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
    parser.add_argument("asked")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    asked = read(options.asked)
    torch.set_num_threads(asked.threads)
    dtype = getattr(torch, asked.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(asked.folder, dtype=dtype, attn_implementation="sdpa")
    model = model.to(asked.device).eval()
    ids = torch.tensor([asked.context + asked.question], device=asked.device)
    found: dict[str, Any] = {"wall": [], "cpu": []}
    for repeat in range(options.repeat + 1):  # the first one warms up
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            whole = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked.new, min_new_tokens=asked.new,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
        found["answers"] = whole[:, ids.shape[1] :].tolist()
        if repeat:
            found["wall"].append(time.perf_counter() - wall)
            found["cpu"].append(time.process_time() - cpu)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
