"""transformers' side of a comparison: `generate` over the full cache, prompt after prompt, in our own environment.

    python benchmarks/ratios/generate_side.py REQUEST.json [--repeat N] [--rival TOKENS]

With `--rival`, a JSON list of another side's answer, it answers once and prints where the two part: the place, both
tokens with their logits there, and the largest logit in magnitude.
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
    parser.add_argument("--rival", type=json.loads)
    options = parser.parse_args()
    request = read(options.request)
    torch.set_num_threads(request.threads)
    dtype = getattr(torch, request.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(request.folder, dtype=dtype, attn_implementation="sdpa")
    model = model.to(request.device).eval()
    ids = torch.tensor([request.context + request.question], device=request.device)
    measured: dict[str, Any] = {"wall": [], "cpu": []}
    for repeat in range(1 if options.rival else options.repeat + 1):  # the first one warms up
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
    if options.rival:
        measured["parting"] = parting(model, ids[0].tolist(), measured["answers"][0], options.rival)
    print(json.dumps(measured))


def parting(model: Any, prompt: list[int], mine: list[int], rival: list[int]) -> dict[str, Any] | None:
    """Where two answers part: the place, both tokens with their logits, and the size of the logits; None: nowhere."""
    place = next((place for place, pair in enumerate(zip(mine, rival, strict=True)) if len(set(pair)) > 1), None)
    if place is None:
        return None
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + mine[:place]], device=model.device), logits_to_keep=1).logits[0, -1]
    tokens = [mine[place], rival[place]]
    return {"place": place, "tokens": tokens, "logits": logits[tokens].tolist(), "size": float(logits.abs().max())}


if __name__ == "__main__":
    main()
