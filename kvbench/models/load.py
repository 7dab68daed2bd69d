"""From a `ModelSpec` to an engine and its tokenizer."""

from dataclasses import dataclass
from typing import Any

import torch

from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.spec import ModelSpec

SUPPORTED = ("llama",)
"""Model types whose attention the bridge is known to reproduce."""


@dataclass(frozen=True)
class LoadedModel:
    """An engine, the tokenizer that goes with it, the tokens that end an answer and the longest sequence."""

    engine: Engine
    tokenizer: Any
    stop: frozenset[int]
    max_length: int
    device: str


def load(spec: ModelSpec) -> LoadedModel:
    """Load config, weights and tokenizer onto the GPU when there is one.

    Raises FileNotFoundError without the model's files and ValueError for a model type that is not supported.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = spec.folder()
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    config = AutoConfig.from_pretrained(folder)
    if config.model_type not in SUPPORTED:
        raise ValueError(f"model.path={spec.path}: model type {config.model_type} is not supported; legal: {SUPPORTED}")
    dtype = spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", use_safetensors=True, local_files_only=True
    )
    model.to(device).eval()
    bridge.attach(model)
    return LoadedModel(
        engine=Engine(model, sync=torch.cuda.synchronize if device == "cuda" else lambda: None),
        tokenizer=AutoTokenizer.from_pretrained(folder, local_files_only=True),
        stop=_stop_tokens(model),
        max_length=spec.max_length or config.max_position_embeddings,
        device=torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
    )


def _stop_tokens(model: Any) -> frozenset[int]:
    """The end-of-sequence tokens of the generation config, which lists more than the tokenizer knows."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
