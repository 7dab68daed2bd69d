"""Correctness of every kernel on this GPU, then what they take.

    python -m benchmarks.gpu_check [--out FOLDER] [--interpret]

Needs torch, triton, transformers and numpy, nothing else. Prints every result as it comes and adds it to
FOLDER/<device>/gpu_check.jsonl, so that a run that is stopped leaves what it had; at the end it writes gpu_check.md
(FOLDER: $OUT, or benchmarks/results, or build with --interpret). Exits 1 where a result is wrong; a missed target is
reported, no failure. With --interpret it runs without a GPU, in Triton's interpreter and at small sizes: its times then
mean nothing.
"""

import argparse
import json
import os
import platform
import re
import sys
import time
from itertools import chain
from pathlib import Path

from benchmarks.gpu_check.standin import stand_in


def main() -> None:
    """Check, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder of results")
    parser.add_argument("--interpret", action="store_true", help="run without a GPU, in Triton's interpreter")
    options = parser.parse_args()
    began = time.perf_counter()
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel's module is imported
    stood_in = stand_in()
    import torch

    if not options.interpret and not torch.cuda.is_available():
        print("no GPU here: run with --interpret to check the kernels in Triton's interpreter", file=sys.stderr)
        sys.exit(2)
    from benchmarks.gpu_check.checks import checks
    from benchmarks.gpu_check.decoding import decoding_checks
    from benchmarks.gpu_check.model import model_checks
    from benchmarks.gpu_check.results import record, table
    from benchmarks.gpu_check.timings import timings

    if options.interpret:
        from benchmarks.gpu_check.interpreter import remember_parts

        remember_parts()
    device = torch.device("cpu" if options.interpret else "cuda")
    name = "interpreter" if options.interpret else torch.cuda.get_device_name(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    out = options.out or ("build" if options.interpret else "benchmarks/results")
    folder = Path(out) / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    packages = versions(stood_in)
    with (folder / "gpu_check.jsonl").open("w", encoding="utf-8") as file:
        file.write(json.dumps({"device": name, "versions": packages}) + "\n")
        every_check = (of(device, options.interpret) for of in (checks, decoding_checks, model_checks))
        results = [record(check, file) for check in chain.from_iterable(every_check)]
        measured = [record(timing, file) for timing in timings(device, options.interpret)]
    text = table(name, packages, results, measured, time.perf_counter() - began)
    folder.joinpath("gpu_check.md").write_text(text, "utf-8")
    print(text)
    print(f"written: {folder / 'gpu_check.jsonl'}, {folder / 'gpu_check.md'}")
    sys.exit(0 if all(check.passed for check in results) else 1)


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
