"""Block sizes, warps and stages of the Triton kernels: each combination is timed, the fastest becomes a line of code.

    python -m benchmarks.first_hour.blocks [--small]

Prints a JSON line for each combination and for each winner, whose line is written into MEASURED of
kvbench/cache/kernels/programs.py. A combination that the GPU refuses, or whose results differ, is no candidate. --small
runs in Triton's interpreter (TRITON_INTERPRET=1) and writes nothing.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.arrays import layer, segments
from benchmarks.gpu_check.clock import times
from kvbench.cache.kernels import column_sums_triton, programs, ragged_decode_triton

TABLE = "MEASURED: dict[tuple[str, tuple[int, int], int], dict[str, int]] = {"


def main() -> None:
    """Time every combination for half precision and float32."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    device = torch.device("cpu" if small else "cuda")
    capability = (0, 0) if small else torch.cuda.get_device_capability()
    combinations = [(64, 4, 2), (64, 4, 3)] if small else list(product((32, 64, 128), (4, 8), (2, 3, 4)))
    for dtype in (torch.bfloat16, torch.float32):
        if small:
            sums, pairs = layer(16, 40, 2, 1, 16, dtype, device), segments((0, 40), 2, 16, dtype, device)
        else:
            sums = layer(32, 32768, 32, 8, 128, dtype, device)
            pairs = segments([4096] * 64, 4, 128, dtype, device)
        work = {
            "column_sums": lambda of=sums: column_sums_triton.column_sums(*of.arrays(), of.scaling, ("obcache_joint",))[
                "obcache_joint"
            ],
            "ragged_decode": lambda of=pairs: ragged_decode_triton.ragged_decode(*of.arrays, 0.1, longest=4096)[0],
        }
        for kernel, launch in work.items():
            key, expected, timed = (kernel, capability, dtype.itemsize), launch(), []
            for block, warps, stages in combinations:
                sizes = {"BLOCK": block, "num_warps": warps, "num_stages": stages}
                programs.MEASURED[key] = sizes
                figure: dict[str, Any] = {"kernel": kernel, "dtype": str(dtype), **sizes}
                try:
                    error = ((launch() - expected).abs().max() / expected.abs().max()).item()
                    figure |= {"error": error, "ms": times(launch, device, *((1, 0) if small else (25, 3))).middle}
                except Exception as refused:  # more shared memory or registers than there are
                    figure["refused"] = f"{type(refused).__name__}: {refused}"[:150]
                print(json.dumps(figure), flush=True)
                if "ms" in figure and figure["error"] < 1e-2:
                    timed.append((figure["ms"], sizes))
            del programs.MEASURED[key]
            if timed:
                fastest = min(timed, key=lambda pair: pair[0])
                print(json.dumps({"kernel": kernel, "dtype": str(dtype), "fastest": fastest[1], "ms": fastest[0]}))
                if not small:
                    write(key, fastest[1])


def write(key: tuple[str, tuple[int, int], int], sizes: dict[str, int]) -> None:
    """Put the line of a winner into the table, in place of an earlier one."""
    path = Path(programs.__file__)
    lines = [
        line for line in path.read_text("utf-8").splitlines() if not line.startswith(f"    {key!r}:".replace("'", '"'))
    ]
    place = next(number for number, line in enumerate(lines) if line.startswith(TABLE.removesuffix("{")))
    if lines[place].endswith("{}"):
        lines[place : place + 1] = [TABLE, "}"]
    lines.insert(place + 1, f"    {key!r}: {sizes!r},".replace("'", '"'))
    path.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
