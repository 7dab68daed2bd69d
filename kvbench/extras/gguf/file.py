"""Models in GGUF files: configuration and weights as transformers reads them, dequantised, and our tokenizer.

transformers leaves out what it does not know: the rule by which a text is split (`tokenizer.py`), and tensors without
a place in its model, such as the scaled frequencies of Llama 3.1. A file with such tensors is refused.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from kvbench.extras.gguf.metadata import metadata, stored_as
from kvbench.extras.gguf.tokenizer import tokenizer_config, tokenizer_json
from kvbench.support.errors import UserError


def template(file: Path) -> str:
    """Return the chat template; empty without one. Raises as `metadata`."""
    return str(metadata(file).get("tokenizer.chat_template") or "")


def quantization(file: Path) -> str | None:
    """Return the type that most weights are stored in; None for plain numbers. Raises as `metadata`."""
    return stored_as(metadata(file))


def read_config(file: Path) -> Any:
    """Return the configuration; raises what transformers raises for an architecture that it does not read.

    Raises UserError without the packages by which transformers reads GGUF files.
    """
    from transformers import AutoConfig

    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise UserError(f"a GGUF file is read by {' and '.join(missing)}: pip install 'kvbench[gguf]'")
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


def check(file: Path, model: Any) -> None:
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


def arguments(file: Path, dtype: torch.dtype | str) -> dict[str, Any]:
    """Return the arguments by which transformers unpacks all weights when it loads them.

    `auto` is float32, in which dequantised weights are exact.
    """
    from transformers.utils.quantization_config import GgufConfig

    return {
        "gguf_file": file.name,
        "quantization_config": GgufConfig(dequantize=True),
        "dtype": torch.float32 if isinstance(dtype, str) else dtype,
    }
