"""Eviction in plain Python: a model that transformers loads, one prompt, no command line and no configuration.

    python scripts/examples/plain_python.py [MODEL_FOLDER]

Without a folder the embedded model is read. What kvbench does to a cache is a function: a cache in, a smaller one out.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.pooling import Pool
from kvbench.eviction.scores.attn import Attention
from kvbench.models import bridge
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.support.paths import assets

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
PROMPT = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    f"number afterwards.\n{9 * NOISE}One of the special magic numbers for quiet-river is: 8090293.\n{6 * NOISE}"
    "What is the special magic number for quiet-river mentioned in the provided text? The special magic number for "
    "quiet-river mentioned in the provided text is"
)
SNAPKV = Policy("snapkv", window=16, pool=Pool("max", 7), recent=16)
"""The newest 16 queries score and are kept; scores are pooled over 7 neighbours."""
NEWEST = 8
"""New tokens of an answer."""


def main(arguments: Sequence[str] = ()) -> None:
    """Answer with the whole cache and with smaller ones."""
    folder = Path(arguments[0]) if arguments else assets() / "reference"
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    bridge.attach(model)  # the model's attention reads and writes our caches from here on
    engine = Engine(model)

    prefilled = engine.prefill(torch.tensor(tokenizer(PROMPT).input_ids), windows={SNAPKV.rows(10**6)})
    full = prefilled.cache
    print(f"{full.num_tokens} tokens, {len(full.layers)} layers, {full.layers[0].cache_heads} KV heads each")

    for pairs in (full.num_tokens, 128, 64, 20):
        smaller = Eviction(SNAPKV, Attention(), TokenBudget(pairs))(full)
        tile = RaggedBatch([smaller], cells=1, max_new_tokens=NEWEST)
        (answer,) = engine.generate(prefilled, tile, stop={model.generation_config.eos_token_id})
        text = tokenizer.decode(answer.ids, skip_special_tokens=True).strip().split("\n")[0]
        print(f"{pairs:4} pairs per head, {smaller.bytes_held / 2**10:7.1f} KiB: {text}")

    decision = Eviction(SNAPKV, Attention(), TokenBudget(64)).decide(full)  # every step in between is an array
    kept = decision.kept[0][0].nonzero().flatten().tolist()
    print(f"layer 0, head 0 keeps {len(kept)} pairs, the first at {kept[:6]}, the newest at {kept[-3:]}")


if __name__ == "__main__":
    main(sys.argv[1:])
