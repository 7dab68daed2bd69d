"""transformers' generate on a random model of a shape: seconds of a prefill and milliseconds of a step, as JSON lines.

python -m benchmarks.first_hour.generate SHAPE TOKENS [--cpu]
"""

import json
import time
from typing import Any

import torch

from benchmarks.first_hour.shape import group_of, options_of, place_of
from kvbench.models.loading.weights import shape_config

STEPS = 16


def main() -> None:
    """Measure and print."""
    options = options_of(__doc__, tokens=int)
    group = group_of(options.shape)
    assert group.model.shape is not None
    from transformers import AutoModelForCausalLM

    config: Any = shape_config(group.model.shape)
    device, dtype = place_of(options.cpu)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    ids = torch.randint(0, config.vocab_size, (1, options.tokens), generator=torch.Generator().manual_seed(0)).to(
        device
    )
    seconds = []
    with torch.inference_mode():
        for new in (1, 1, 1 + STEPS):
            start = time.perf_counter()
            model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
                pad_token_id=0,
            ).tolist()  # fmt: skip
            seconds.append(time.perf_counter() - start)
    peak = None if options.cpu else torch.cuda.max_memory_allocated()
    step = 1000 * (seconds[2] - seconds[1]) / STEPS
    figures = {"who": "generate", "tokens": options.tokens, "prefill_seconds": seconds[1], "step_ms": step}
    print(json.dumps({**figures, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
