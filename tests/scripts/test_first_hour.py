"""`make gpu-first-hour` without a GPU: every part runs small, and writes its figures as they come."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.first_hour.__main__ import PARTS
from benchmarks.first_hour.blocks import TABLE, write
from kvbench.cache.kernels import triton as kernels
from scripts import gpu_bundle

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "kernels": {"allowed", "unit"},
    "policies": {"answers_that_differ", "compare"},
    "speed": {"who", "roofline", "first_token_seconds"},
    "readers": {"rows"},
    "memory": {"rows"},
    "kvpress": {"ratios"},
    "blocks": {"ms", "fastest"},
}
"""Figures that each part has among others."""


def first_hour(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "OUT")}
    command = [sys.executable, "-m", "benchmarks.first_hour", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_on_a_cpu_and_writes_its_figures(part: str, tmp_path: Path) -> None:
    done = first_hour(part, "--small", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [json.loads(line) for line in (tmp_path / "first_hour.jsonl").read_text("utf-8").splitlines()]
    assert all(line["device"] == "cpu" and line["part"] == part for line in lines)
    assert set().union(*lines) >= EXPECTED[part] and lines[-1]["good"] is True
    assert all(json.dumps(line) in done.stdout for line in lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_how_to_try_it() -> None:
    done = first_hour("blocks")
    assert done.returncode == 1 and "run with --small" in done.stderr
    assert "choose some of kernels, policies" in first_hour("speeds").stderr


def test_the_fastest_sizes_become_a_line_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second winner replaces the first; the kernels then take it."""
    copied = tmp_path / "triton.py"
    copied.write_text(Path(kernels.__file__).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(kernels, "__file__", str(copied))
    key, sizes = ("column_sums", (9, 0), 2), {"BLOCK": 32, "num_warps": 8, "num_stages": 2}
    for block in (128, 32):
        write(key, {**sizes, "BLOCK": block})
    assert copied.read_text("utf-8").count('    ("column_sums", (9, 0), 2): {"BLOCK": 32, "num_warps": 8') == 1
    assert copied.read_text("utf-8").count(TABLE) == 1
    compile(copied.read_text("utf-8"), str(copied), "exec")
    queries = torch.zeros(1, 1, 64, dtype=torch.bfloat16)
    assert kernels.launch_sizes("column_sums", queries) == kernels.HALF
    monkeypatch.setitem(kernels.MEASURED, ("column_sums", (0, 0), 2), sizes)
    assert kernels.launch_sizes("column_sums", queries) == sizes
    assert kernels.launch_sizes("column_sums", queries.float()) == kernels.WIDE


def test_the_bundle_holds_what_a_run_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every dependency but those that reports need; a bundle that is too large is refused."""
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    assert all(f"\n{name}==" in f"\n{constraints}" for name in gpu_bundle.KVBENCH)
    monkeypatch.setattr(gpu_bundle, "LIMIT", 1000)
    monkeypatch.setattr(gpu_bundle.sys, "argv", ["gpu_bundle", "--out", str(tmp_path / "wheels")])

    def download(command: list[str], check: bool) -> None:
        folder = Path(command[command.index("-d" if "-d" in command else "-w") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(list(folder.iterdir()))}.whl").write_bytes(bytes(400))

    monkeypatch.setattr(gpu_bundle.subprocess, "run", download)
    with pytest.raises(SystemExit, match="allowed: less than 0; leave a package out"):
        gpu_bundle.main()
