"""Golden codes of floats of few bits, computed by NVIDIA's Model Optimizer: tests/golden/stores.json.

    PYTHONPATH=. PYTHON scripts/golden_stores.py

PYTHON has torch and nvidia-modelopt (0.47.0). `fp8` and `nvfp4`: `scale` of all numbers of `drawn`, `codes` and, of
blocks, `blocks` as hexadecimal bytes, and `read`, the sum of the numbers as read back. The file has numbers only.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).parents[1] / "tests" / "golden" / "stores.json"
SEEDS = (0, 1)


def drawn(seed: int) -> np.ndarray:
    """Numbers [16 rows, 64] in float32 from numpy's legacy generator: rows differ in size, and halves are common."""
    draw = np.random.RandomState(seed)
    numbers = draw.standard_normal((16, 64)) * 2.0 ** draw.randint(-12, 6, (16, 1))
    numbers[:4] = draw.randint(-24, 25, (4, 64)) / 4
    return numbers.astype(np.float32)


def main() -> None:
    """Write all cases."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor  # type: ignore[import-not-found]

    def hexadecimal(codes: Tensor) -> str:
        return codes.contiguous().view(torch.uint8).numpy().tobytes().hex()

    cases = []
    for seed in SEEDS:
        numbers = torch.from_numpy(drawn(seed))
        eight, scale = FP8QTensor.quantize(numbers.clone())
        four, blocks, whole = NVFP4QTensor.quantize(numbers.clone(), 16)
        read = eight.dequantize(scale=scale), four.dequantize(scale=blocks, double_scale=whole, block_sizes={-1: 16})
        fp8, nvfp4 = (
            {"scale": float(each_scale), "codes": hexadecimal(each._quantized_data), "read": float(sums.double().sum())}
            for each, each_scale, sums in zip((eight, four), (scale, whole), read, strict=True)
        )
        cases.append({"seed": seed, "fp8": fp8, "nvfp4": nvfp4 | {"blocks": hexadecimal(blocks)}})
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main()
