"""What a check found: as JSON for machines, as a table for people."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu_check.checks import Check
from benchmarks.gpu_check.timings import Timing


@dataclass(frozen=True)
class Results:
    """Everything: on what, with what, how right and how fast."""

    device: str
    versions: dict[str, str]
    checks: list[Check]
    timings: list[Timing]
    seconds: dict[str, float]


def table(results: Results) -> str:
    """Markdown: what was wrong or not checked by name, all times with their spread."""
    made = [check for check in results.checks if check.skipped is None]
    wrong = [check for check in made if not check.passed]
    lines = [
        f"# Kernels on {results.device}",
        "",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()),
        "",
        f"{len(made) - len(wrong)} of {len(made)} comparisons with the truth in float64 hold "
        f"({results.seconds['all']:.0f} s in all).",
        *(f"- wrong: {check.name}: {check.error:.2e}, allowed {check.allowed:.0e}" for check in wrong),
        *(f"- not checked: {check.name}: {check.skipped}" for check in results.checks if check.skipped is not None),
        "",
    ]
    if results.device == "interpreter":
        lines += ["Small sizes in Triton's interpreter: the times below mean nothing.", ""]
    lines += ["| what | ms (least to most) | value | against | target | met |", "|---|---|---|---|---|---|"]
    for timing in results.timings:
        spread = f"{timing.times.middle:.4g} ({timing.times.least:.4g} to {timing.times.most:.4g})"
        met = "" if timing.met is None or results.device == "interpreter" else "yes" if timing.met else "no"
        value = f"{timing.value:.4g} {timing.unit}"
        lines.append(f"| {timing.name} | {spread} | {value} | {timing.against} | {timing.target} | {met} |")
    return "\n".join(lines) + "\n"


def write(results: Results, folder: Path) -> None:
    """`gpu_check.json` and `gpu_check.md` in a folder that need not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("gpu_check.json").write_text(json.dumps(asdict(results), indent=1) + "\n", "utf-8")
    folder.joinpath("gpu_check.md").write_text(table(results), "utf-8")
