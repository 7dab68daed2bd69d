"""The shape of a loaded model, as far as its work depends on it."""

from typing import Any

from kvbench.models.loading.architecture import sliding_windows, text_config
from kvbench.run.timing.work import Shape


def shape_of(model: Any) -> Shape:
    """Counts weights of matrices; norms and biases are as good as nothing."""
    text = text_config(model.config)
    head, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    matrices = (weight for weight in model.parameters() if weight.dim() >= 2)
    inner = sum(weight.numel() for weight in matrices if weight is not head and weight is not table)
    heads = text.num_attention_heads
    return Shape(
        inner=inner,
        head=head.numel(),
        bytes_each=table.itemsize,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        windows=tuple(sliding_windows(model.config)),
    )


def weight_bytes(model: Any) -> int:
    """Bytes of all parameters; torch names each once."""
    return sum(weight.nbytes for weight in model.parameters())
