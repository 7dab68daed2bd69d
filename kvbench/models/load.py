"""From a `ModelSpec` to an engine and its tokenizer, in two steps: what costs nothing is checked before any weight."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kvbench.models import bridge
from kvbench.models.chat import check_chat
from kvbench.models.engine import Engine
from kvbench.models.spec import ModelSpec

SUPPORTED = ("llama",)
"""Model types whose attention the bridge is known to reproduce."""

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary embeddings whose frequencies depend on how much is read at once: blocks and a whole prompt would differ."""


@dataclass(frozen=True)
class Outline:
    """A model without its weights: its folder, configuration, tokenizer and longest sequence."""

    spec: ModelSpec
    folder: Path
    config: Any
    tokenizer: Any

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self.spec.max_length or self.config.max_position_embeddings


@dataclass(frozen=True)
class LoadedModel:
    """An engine, the tokenizer that goes with it, the tokens that end an answer and the longest sequence."""

    engine: Engine
    tokenizer: Any
    stop: frozenset[int]
    max_length: int
    device: str


def outline(spec: ModelSpec) -> Outline:
    """Read configuration and tokenizer and refuse what could not be run.

    Raises FileNotFoundError where files are missing or broken, ValueError for a model that is not supported.
    """
    from transformers import AutoConfig, AutoTokenizer

    folder = spec.folder()
    config = _from(spec, lambda: AutoConfig.from_pretrained(folder))
    if config.model_type not in SUPPORTED:
        legal = ", ".join(SUPPORTED)
        raise ValueError(f"model.path={spec.path}: model type {config.model_type} is not supported; legal: {legal}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in LENGTH_DEPENDENT_ROPE:
        raise ValueError(f"model.path={spec.path}: rope_type {rope} is not supported: it changes with the length read")
    tokenizer = _from(spec, lambda: AutoTokenizer.from_pretrained(folder, local_files_only=True))
    check_chat(tokenizer, spec.chat, spec.system)
    return Outline(spec, folder, config, tokenizer)


def load(outlined: Outline) -> LoadedModel:
    """Load the weights onto the GPU when there is one.

    Raises FileNotFoundError where they are missing or broken.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    spec = outlined.spec
    torch.set_num_threads(spec.threads or _own_threads())
    dtype = spec.dtype if spec.dtype == "auto" else getattr(torch, spec.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = _from(
        spec,
        lambda: AutoModelForCausalLM.from_pretrained(
            outlined.folder, dtype=dtype, attn_implementation="eager", use_safetensors=True, local_files_only=True
        ),
    )
    model.to(device).eval()
    bridge.attach(model)
    return LoadedModel(
        engine=Engine(
            model,
            max_length=outlined.max_length,
            sync=torch.cuda.synchronize if device == "cuda" else lambda: None,
        ),
        tokenizer=outlined.tokenizer,
        stop=_stop_tokens(model),
        max_length=outlined.max_length,
        device=torch.cuda.get_device_name() if device == "cuda" else f"cpu, {torch.get_num_threads()} threads",
    )


def _from(spec: ModelSpec, read: Any) -> Any:
    """Call a reader of the model's files; whatever it makes of broken ones is broken data, not a bug."""
    try:
        return read()
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        where = spec.path or "null, the embedded model"
        raise FileNotFoundError(f"model.path={where}: cannot be loaded: {type(error).__name__}: {reason}") from error


@cache
def _own_threads() -> int:
    """How many threads torch chose itself, asked before anything changes it."""
    return torch.get_num_threads()


def _stop_tokens(model: Any) -> frozenset[int]:
    """The end-of-sequence tokens of the generation config, which lists more than the tokenizer knows."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
