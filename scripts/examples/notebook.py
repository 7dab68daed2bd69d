"""A transformers model in memory, as in a notebook: several policies from one prefill, what they keep, and a plot.

python scripts/examples/notebook.py [kept.png]
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import kvbench
from kvbench.support.paths import assets

MODEL = assets() / "reference"  # or the name of a model on the hub
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
QUESTION = "What is the special magic number for quiet-river mentioned in the provided text? "
PROMPT = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    f"number afterwards.\n{9 * NOISE}One of the special magic numbers for quiet-river is: 8090293.\n{6 * NOISE}"
    f"{QUESTION}The special magic number for quiet-river mentioned in the provided text is"
)


def main(arguments: Sequence[str] = ()) -> None:
    """The five lines of a notebook, and what else there is."""
    out = Path(arguments[0] if arguments else "kept.png")
    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    policies = ["full", "streaming_llm", "h2o", "snapkv"]
    answers = kvbench.generate(model, PROMPT, tokenizer, policy=policies, budget=0.2, max_new_tokens=8)
    kvbench.plot_kept(answers[1:]).savefig(out)

    for answer in answers:
        print(answer)
    kept = answers[-1].kept  # positions by layer and head
    print(f"layer 0, head 0 keeps {len(kept.positions(0, 0))} of {kept.num_tokens}: {kept.positions(0, 0)[:6]} ...")

    smaller = kvbench.evict(model, PROMPT, tokenizer, score="obcache_joint", budget=64, **{"policy.window": 16})
    print(f"{smaller}: {smaller.cache.pairs} KV pairs, {smaller.cache_bytes / 2**10:.0f} KiB")
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids  # the model itself is as it was
    print(f"model.generate: {tokenizer.decode(model.generate(ids, max_new_tokens=8)[0, ids.shape[1] :])}")


if __name__ == "__main__":
    main(sys.argv[1:])
