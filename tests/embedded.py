"""The sizes of the embedded model."""

import json

from kvbench.support import paths

FOLDER = paths.assets() / "reference"
CONFIG = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
LAYERS, QUERY_HEADS, KV_HEADS = (
    CONFIG[name] for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
)
HEAD_DIM, HIDDEN, VOCABULARY = (CONFIG[name] for name in ("head_dim", "hidden_size", "vocab_size"))
