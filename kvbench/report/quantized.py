"""What the full cache would hold in a quantised cache of transformers: the budget that holds as many bytes.

QuantizedCache with the backend quanto (optimum-quanto 0.2.7, `optimum/quanto/tensor/optimizers/affine_optimizer.py`)
packs numbers of 2 or 4 bits and keeps a scale and a shift in the model's precision for each group of 64. Up to 128
tokens are kept as they are besides; they are left out here. `store=int4` and `store=int2` hold, and time, the same.
"""

from collections.abc import Mapping

GROUP = 64
BITS = (4, 2)
BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def share_of_full(bits: int, bytes_each: int, group: int = GROUP) -> float:
    """Bytes of a quantised number, its part of scale and shift included, over those of a number that is not."""
    return (bits / 8 + 2 * bytes_each / group) / bytes_each


def quantized_note(dtype: str | None) -> str:
    """A line for people, or nothing where the precision is not known."""
    if dtype is None or dtype not in BYTES:
        return ""
    shares = " and ".join(f"{100 * share_of_full(bits, BYTES[dtype]):.3g} % in {bits} bits" for bits in BITS)
    return f"equal bytes: of a full cache in {dtype}, transformers' QuantizedCache (quanto) holds {shares}"
