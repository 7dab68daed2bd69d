"""The Triton kernels compiled for GPUs by `scripts/compile_kernels.py`, on any machine where Triton can compile."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from scripts.compile_kernels import SHARED, SPILLS, Program

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "compile_kernels.py"
DOES_NOT_COMPILE = """
import runpy, sys
import triton, triton.language as tl

@triton.jit
def _variance(numbers, AT: tl.constexpr):
    own = tl.load(numbers + tl.arange(0, 16))
    for row in range(4):
        if row > 2:
            own = own[:, None] + own[None, :]
    tl.store(numbers + tl.arange(0, 16), own)

sys.argv = ["compile_kernels", "--choice", "--arch", "90"]
from scripts import compile_kernels
from torch import zeros
compile_kernels.launches = lambda *_: [("a vector becomes a tile", lambda: _variance[(1,)](zeros(16), AT=1))]
compile_kernels.main()
"""


@pytest.fixture(autouse=True)
def can_compile() -> None:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not all((tools / name).exists() for name in ("ptxas", "cuobjdump")):
        pytest.skip(f"this triton cannot compile for GPUs: no ptxas and cuobjdump in {tools}")


def python(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=600)


def test_the_largest_kernels_compile_for_an_a100(tmp_path: Path) -> None:
    done = python(tmp_path, str(SCRIPT), "--choice", "--arch", "80")
    assert done.returncode == 0, done.stderr[-3000:]
    for kernel in (
        "bfloat16 head_dim 128 _column_sums",
        "float32 head_dim 256 _column_sums",
        "float32 head_dim 256 _over",
    ):
        assert f"sm_80 {kernel}" in done.stdout
    assert "6 variants, 0 faults" in done.stdout


def test_what_does_not_compile_is_a_fault(tmp_path: Path) -> None:
    program = tmp_path / "broken.py"
    program.write_text(DOES_NOT_COMPILE, "utf-8")
    done = python(tmp_path, str(program))
    assert done.returncode == 1, done.stderr
    assert "head_dim 128 a vector becomes a tile: does not compile: CompilationError" in done.stderr


def test_without_compilation_it_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "TRITON_INTERPRET is set" in done.stderr


def test_what_a_gpu_would_refuse_is_a_fault() -> None:
    sums = Program("sm_80 bfloat16 head_dim 64 _column_sums", "attn", 255, SHARED[80], SPILLS, tensor_cores=True)
    assert not [*sums.faults(80)]
    assert "166912" in next(replace(sums, shared=SHARED[80] + 1).faults(80))
    assert not [*replace(sums, shared=SHARED[80] + 1).faults(90)]
    assert "spilled" in next(replace(sums, spilled=SPILLS + 1).faults(90))
    assert "tensor cores" in next(replace(sums, tensor_cores=False).faults(90))
    assert not [*replace(sums, name="sm_80 float32 head_dim 64 _column_sums", tensor_cores=False).faults(80)]
