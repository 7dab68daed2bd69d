"""Correctness of every kernel on this GPU, then what they take.

    python -m benchmarks.gpu_check [--out FOLDER] [--interpret]

Needs torch, triton, transformers and numpy, nothing else. Writes FOLDER/<device>/gpu_check.json and gpu_check.md
(FOLDER: $OUT, or benchmarks/results, or build with --interpret). Exits 1 where a result is wrong; a missed target is
reported, no failure. With --interpret it runs without a GPU, in Triton's interpreter and at small sizes: its times then
mean nothing.
"""

import argparse
import os
import platform
import re
import sys
import time
from pathlib import Path

from benchmarks.gpu_check.standin import stand_in


def main() -> None:
    """Check, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder of results")
    parser.add_argument("--interpret", action="store_true", help="run without a GPU, in Triton's interpreter")
    options = parser.parse_args()
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel's module is imported
    stood_in = stand_in()
    import torch

    if not options.interpret and not torch.cuda.is_available():
        print("no GPU here: run with --interpret to check the kernels in Triton's interpreter", file=sys.stderr)
        sys.exit(2)
    from benchmarks.gpu_check.checks import checks
    from benchmarks.gpu_check.model import model_checks
    from benchmarks.gpu_check.results import Results, table, write
    from benchmarks.gpu_check.timings import timings

    device = torch.device("cpu" if options.interpret else "cuda")
    name = "interpreter" if options.interpret else torch.cuda.get_device_name(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    began = time.perf_counter()
    made = []
    for check in (*checks(device, options.interpret), *model_checks(device, options.interpret)):
        made.append(check)
        if not check.passed:
            print(f"WRONG {check.name}: {check.error:.2e} instead of at most {check.allowed:.0e}", file=sys.stderr)
    checked = time.perf_counter() - began
    measured = list(timings(device, options.interpret))
    results = Results(
        device=name,
        versions=versions(stood_in),
        checks=made,
        timings=measured,
        seconds={"checks": round(checked, 1), "all": round(time.perf_counter() - began, 1)},
    )
    out = options.out or ("build" if options.interpret else "benchmarks/results")
    folder = Path(out) / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    write(results, folder)
    print(table(results))
    print(f"written: {folder / 'gpu_check.json'}, {folder / 'gpu_check.md'}")
    sys.exit(0 if all(check.passed for check in made) else 1)


def versions(stood_in: bool) -> dict[str, str]:
    """What the numbers may depend on."""
    import numpy
    import torch
    import transformers
    import triton

    results = {package.__name__: package.__version__ for package in (torch, triton, transformers, numpy)}
    results |= {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    return results | ({"jaxtyping": "stand-in"} if stood_in else {})


if __name__ == "__main__":
    main()
