"""The weights of a model: of a folder or a model file, or random ones of a shape."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from kvbench.models.loading.model_file import reader_of
from kvbench.models.loading.spec import ModelSpec, Shape
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.quantity import shortened

LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""How transformers reads a folder: no downloads, no code of the folder, no prompt to allow it."""


def from_folder(spec: ModelSpec, folder: Path, config: Any, dtype: torch.dtype | str, device: torch.device) -> Any:
    """Return the model of a folder with transformers' eager attention; raises what transformers raises for broken
    files.

    Raises MissingFile, naming the tensors, for a checkpoint that does not hold exactly the model's: transformers
    draws missing ones at random. Tied weights and buffers that its model class does without are its exceptions.
    """
    options: dict[str, Any] = {"dtype": dtype} | ({} if spec.device_map is None else {"device_map": spec.device_map})
    if folder.is_file():
        options |= reader_of(folder).arguments(folder, dtype)
    with _without_report():
        loaded: Any = model_class(config).from_pretrained(
            folder.parent if folder.is_file() else folder,
            config=config,  # without it, `_attn_implementation` of config.json wins over the argument
            attn_implementation="eager",
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # named below
            output_loading_info=True,
            **LOCAL,
            **options,
        )
    model, loading = loaded
    faults = {
        "missing": sorted(loading["missing_keys"]),
        "unknown to the model": sorted(loading["unexpected_keys"]),
        "of another shape": [
            f"{name} {list(held)}, not {list(expected)}" for name, held, expected in sorted(loading["mismatched_keys"])
        ],
    }
    if any(faults.values()):
        listed = "; ".join(f"{fault}: {shortened(names, 3)}" for fault, names in faults.items() if names)
        raise MissingFile(
            f"model.path={spec.path}: the weights are not those of a {type(model).__name__} as config.json describes "
            f"it: {listed}; fetch or save the model again, weights and config.json together"
        )
    if folder.is_file():
        reader_of(folder).check(folder, model)
    return model if spec.device_map is not None else model.to(device)


@contextmanager
def _without_report() -> Iterator[None]:
    """Keep transformers from printing a page about tensors that do not fit."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def model_class(config: Any) -> Any:
    """Return the class of transformers that makes a model of a configuration: a causal one, or one that reads images
    too.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    causal = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForCausalLM if causal else AutoModelForImageTextToText


def shape_config(shape: Shape) -> Any:
    """Return the configuration of a shape, without special tokens: no token of a random model ends its answer.

    Raises UserError for unknown types and settings, and for values that transformers refuses.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if shape.model_type not in CONFIG_MAPPING:
        raise UserError(f"model.shape.model_type={shape.model_type} is not known to transformers; e.g. llama, qwen2")
    without = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    default = CONFIG_MAPPING[shape.model_type]()
    for name in shape.config:
        if not hasattr(default, name):
            raise UserError(f"model.shape.config.{name} is not a setting of {shape.model_type}")
    try:
        # a copy: transformers completes nested settings in place, and the shape is a part of what cells are named by
        return AutoConfig.for_model(shape.model_type, **(without | deepcopy(shape.config)))
    except Exception as error:  # transformers checks values with exceptions of several packages
        reason = " ".join(str(error).split())
        raise UserError(f"model.shape.config is refused by {shape.model_type}: {reason}") from error


def random(config: Any, seed: int, dtype: torch.dtype | str, device: torch.device) -> Any:
    """Return a model with random weights, drawn on its device: a seed gives other numbers on another kind of device.

    `auto` is float32. The global generator is not changed.
    """
    dtype = torch.float32 if isinstance(dtype, str) else dtype
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        return model_class(config).from_config(config, dtype=dtype, attn_implementation="eager")
