"""Tiny random models of the Llama family, with grouped-query attention and sizes that are not powers of two."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvbench.models import bridge
from kvbench.models.engine import Engine
from tests.repository import GOLDEN

TOKENIZER = GOLDEN / "ruler" / "tokenizer"
PROMPT = torch.randint(0, 97, (61,), generator=torch.Generator().manual_seed(3))


def tiny_llama(dtype: torch.dtype = torch.float32, init: float = 0.2, **changes: object) -> LlamaForCausalLM:
    """Three layers, 6 query heads over 2 KV heads; a wide initialisation makes attention peaky."""
    torch.manual_seed(7)
    settings: dict[str, object] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": init,
        "attn_implementation": "eager",
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).to(dtype).eval()


def save(model: Any, folder: Path) -> Path:
    """A folder with a model and the tokenizer of the RULER files."""
    model.save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def make_engine(dtype: torch.dtype = torch.float32, prefill_chunk: int = 2048, max_batch: int = 4) -> Engine:
    """An engine on a fresh tiny model."""
    model = tiny_llama(dtype)
    bridge.attach(model)
    return Engine(model, prefill_chunk=prefill_chunk, max_batch=max_batch)
