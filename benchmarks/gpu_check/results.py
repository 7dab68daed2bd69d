"""What a check found: one line as each result comes, as JSON for machines; a table for people at the end."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TextIO, TypeVar

from benchmarks.gpu_check.checks import Check
from benchmarks.gpu_check.timings import Timing

Result = TypeVar("Result", Check, Timing)


def record(result: Result, file: TextIO) -> Result:
    """Print a result and add it to a file of JSON lines; returns it."""
    print(_check_line(result) if isinstance(result, Check) else " | ".join(_cells(result, True)), flush=True)
    file.write(json.dumps(asdict(result)) + "\n")
    file.flush()
    return result


def table(
    device: str, versions: Mapping[str, str], checks: Sequence[Check], timings: Sequence[Timing], seconds: float
) -> str:
    """Markdown: what was wrong or not checked by name, all times with their spread."""
    comparisons = [check for check in checks if check.skipped is None]
    lines = [
        f"# Kernels on {device}",
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        "",
        f"{sum(check.passed for check in comparisons)} of {len(comparisons)} comparisons with the truth in float64 "
        f"hold ({seconds:.0f} s in all).",
        *(f"- {_check_line(check)}" for check in checks if check.skipped is not None or not check.passed),
        "",
    ]
    if device == "interpreter":
        lines += ["Small sizes in Triton's interpreter: the times below mean nothing.", ""]
    lines += ["| what | ms (least to most) | value | against | target | met |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_cells(timing, device != 'interpreter'))} |" for timing in timings]
    return "\n".join(lines) + "\n"


def _check_line(check: Check) -> str:
    if check.skipped is not None:
        return f"not checked: {check.name}: {check.skipped}"
    return f"{'holds' if check.passed else 'WRONG'}: {check.name}: {check.error:.2e}, allowed {check.allowed:.0e}"


def _cells(timing: Timing, on_gpu: bool) -> tuple[str, ...]:
    spread = f"{timing.times.middle:.4g} ({timing.times.least:.4g} to {timing.times.most:.4g})"
    met = "" if timing.met is None or not on_gpu else "yes" if timing.met else "no"
    return timing.name, spread, f"{timing.value:.4g} {timing.unit}", timing.against, timing.target, met
