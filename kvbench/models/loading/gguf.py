"""Models in GGUF files: configuration and weights as transformers reads them, dequantised, and our tokenizer.

transformers leaves out what it does not know: the rule by which a text is split (`gguf_tokenizer`), and tensors without
a place in its model, such as the scaled frequencies of Llama 3.1. A file with such tensors is refused.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvbench.support.errors import UserError
from kvbench.support.gguf_metadata import metadata
from kvbench.support.gguf_tokenizer import tokenizer_config, tokenizer_json


def check_installed() -> None:
    """Raise UserError without the packages by which transformers reads GGUF files."""
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise UserError(f"a GGUF file is read by {' and '.join(missing)}: pip install 'kvbench[gguf]'")


def read_config(file: Path) -> Any:
    """Return the configuration; raises what transformers raises for an architecture that it does not read."""
    from transformers import AutoConfig

    check_installed()
    return AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)


def read_tokenizer(file: Path) -> Any:
    """Return the tokenizer. Raises UserError for a rule of splitting that is not known."""
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    fields = metadata(file)
    backend = Tokenizer.from_str(json.dumps(tokenizer_json(fields, file.name)))
    settings = tokenizer_config(fields)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


def check_tensors(file: Path, model: Any) -> None:
    """Raise UserError for a file that holds more numbers than the model has parameters."""
    from gguf import GGUFReader

    held = {tensor.name: int(tensor.n_elements) for tensor in GGUFReader(file).tensors}
    used = sum(parameter.numel() for parameter in model.parameters())
    if sum(held.values()) != used:
        extra = [name for name in held if name.startswith("rope_")]
        named = f" with {', '.join(extra)}" if extra else ""
        raise UserError(
            f"{file.name} holds {sum(held.values())} numbers{named}, but transformers makes a model of {used} of it, "
            "which would answer otherwise: use the publisher's safetensors"
        )


def dequantising() -> Any:
    """Return the argument `quantization_config` by which transformers unpacks all weights when it loads them."""
    from transformers.utils.quantization_config import GgufConfig

    return GgufConfig(dequantize=True)


def float_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Return the dtype to load in: `auto` is float32, in which dequantised weights are exact."""
    return torch.float32 if isinstance(dtype, str) else dtype
