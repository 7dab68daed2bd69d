"""The Triton kernels compiled for GPUs by `scripts/compile_kernels.py`, on any machine where Triton can compile."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import pytest
import triton

from scripts import compile_kernels
from scripts.compile_kernels import SHARED, SPILLS, Program
from tests.pretended_gpu import KERNELS
from tests.repository import ROOT

SIZES = {"_column_sums": 2, "_over_splits": 3}
"""Sizes in half precision, of which a GPU takes the fastest."""
SCRIPT = ROOT / "scripts" / "compile_kernels.py"
FAULTS = """
import sys
from functools import partial
import torch, triton, triton.language as tl
from kvbench.extras.triton.programs import Tuned
from scripts import compile_kernels


@triton.jit
def _variance(numbers):
    own = tl.load(numbers + tl.arange(0, 16))
    for row in range(4):
        if row > 2:
            own = own[:, None] + own[None, :]
    tl.store(numbers + tl.arange(0, 16), own)

@triton.jit
def _added(numbers):
    places = numbers + tl.arange(0, 16)
    tl.store(places, tl.load(places) + 1)

@partial(Tuned, sizes=[{"BLOCK": 64, "num_warps": warps, "num_stages": 1} for warps in (1, 4, 1)], key=[])
@triton.jit
def _divided(queries, BLOCK: tl.constexpr, PADDED_DIM: tl.constexpr):
    total = tl.sum(tl.load(queries + tl.arange(0, BLOCK)).to(tl.float32), 0)
    tl.store(queries, total)

@triton.jit
def _crowded(numbers):
    rows, deep = tl.arange(0, 16), tl.arange(0, 8192)
    left = tl.load(numbers + rows[:, None] * 8192 + deep[None, :])
    right = tl.load(numbers + deep[:, None] * 16 + rows[None, :])
    tl.store(numbers + rows[:, None] * 16 + rows[None, :], tl.dot(left, right).to(tl.bfloat16))

@triton.jit
def _spilling(numbers, steps):
    places = numbers + tl.arange(0, 16384)
    every = tl.load(places).to(tl.float32)
    for step in range(steps):
        every = every * every + tl.sum(every, 0)
    tl.store(places, every)

numbers = torch.zeros(16, dtype=torch.bfloat16)
compile_kernels.launches = lambda *_: [
    ("a vector becomes a tile", lambda: _variance[(1,)](numbers)),
    ("no product", lambda: _added[(1,)](numbers)),
    ("warps", lambda: _divided[(1,)](numbers, PADDED_DIM=64)),
    ("a large product", lambda: _crowded[(1,)](numbers)),
    ("a long vector", lambda: _spilling[(1,)](numbers, 7, num_warps=1)),
]
compile_kernels.product = lambda *_: [("bfloat16", 64)]
sys.argv = ["compile_kernels", "--arch", "90"]
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


@pytest.mark.parametrize("arch", SHARED)
def test_every_kernel_compiles_for_an_a100_and_an_h100(arch: int, pytestconfig: pytest.Config) -> None:
    """Triton's cache, which depends on the source of a kernel, stays from run to run: what did not change is read."""
    assert pytestconfig.cache is not None
    done = python(pytestconfig.cache.mkdir("triton"), str(SCRIPT), "--choice", "--arch", str(arch))
    assert done.returncode == 0, done.stderr[-3000:]
    programs = {
        (size, kernel): SIZES.get(kernel, 1) if size.startswith("bfloat16") else 1
        for size, kernel in product(("bfloat16 head_dim 128", "float32 head_dim 256"), chain(*KERNELS.values()))
    }
    for (size, kernel), variants in programs.items():
        assert f"sm_{arch} {size} {kernel}: {variants} variants" in done.stdout
    assert f"{sum(programs.values())} variants, 0 faults" in done.stdout


@pytest.mark.slow
def test_every_fault_is_reported_and_fails(tmp_path: Path) -> None:
    """Kernels that do not compile, multiply nothing on tensor cores, take too much shared memory, and spill."""
    program = tmp_path / "broken.py"
    program.write_text(FAULTS, "utf-8")
    done = python(tmp_path, str(program))
    assert done.returncode == 1, done.stderr
    where = "WRONG sm_90 bfloat16 head_dim 64"
    assert f"{where} a vector becomes a tile: does not compile: CompilationError" in done.stderr
    assert f"{where} _added no product: multiplies half precision without tensor cores" in done.stderr
    assert re.search(f"{where} _crowded a large product: [0-9]+ B of shared memory, sm_90 has 232448", done.stderr)
    assert re.search(f"{where} _spilling a long vector: [0-9]+ B spilled, allowed: {SPILLS}", done.stderr)
    assert f"{where} warps: its sizes add in different orders" in done.stderr
    assert "5 variants, 8 faults" in done.stdout


def test_without_compilation_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compile_kernels"])
    monkeypatch.setattr(compile_kernels.programs, "INTERPRETED", True)
    with pytest.raises(SystemExit, match="TRITON_INTERPRET is set"):
        compile_kernels.main()


def test_what_a_gpu_would_refuse_is_a_fault() -> None:
    sums = Program("sm_80 bfloat16 head_dim 64 _column_sums", "attn", 255, SHARED[80], SPILLS, tensor_cores=True)
    assert not [*sums.faults(80)]
    assert "166912" in next(replace(sums, shared=SHARED[80] + 1).faults(80))
    assert not [*replace(sums, shared=SHARED[80] + 1).faults(90)]
    assert "spilled" in next(replace(sums, spilled=SPILLS + 1).faults(90))
    assert "tensor cores" in next(replace(sums, tensor_cores=False).faults(90))
    assert not [*replace(sums, name="sm_80 float32 head_dim 64 _column_sums", tensor_cores=False).faults(80)]
