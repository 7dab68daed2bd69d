"""Compile every Triton kernel that kvbench launches for A100 (sm_80) and H100 (sm_90); no GPU is needed.

    python scripts/compile_kernels.py [--arch 80 90] [--choice]

The functions that launch the kernels are called with CPU tensors, and every launch becomes a compilation: the result is
what a GPU would run, specialised on sizes and strides as there. Prints a line for each GPU, kernel, dtype and head_dim:
the number of variants, and the most registers, shared memory and spilled bytes that one of them takes. Exits 1 if a
variant does not compile, needs more shared memory than the GPU has, spills more than SPILLS, multiplies half precision
without tensor cores, or adds in another order than the same variant with other block sizes, of which a GPU takes the
fastest. --choice compiles one variant of each kernel at two head widths, as the tests do.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kvbench.cache.kernels.column_sums import TERMS, WITHOUT_DIAGONAL, Term
from kvbench.cache.kernels.ragged_decode import Segments
from kvbench.extras.triton import (
    caote,
    column_sums,
    cosines,
    lagkv,
    norms,
    pooled,
    programs,
    ragged_decode,
    row_sums,
    slots,
    tail,
    triattention,
)
from kvbench.extras.triton.programs import Tuned

SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a block may have."""
SPILLS = 450
"""Bytes that a thread may keep in memory for lack of registers; `_row_sums` in float32 takes 376 on sm_90."""
WITHOUT_PRODUCTS = (
    *("_merge", "_append", "_evict", "_reorder", "_turned", "_row_sums"),
    *("_weighed", "_leverages", "_cur", "_caote", "_key_diff", "_deviations", "_lag_scores", "_newest_alike"),
    *("_pooled", "_redundancy", "_rkv", "_triattention"),
)
"""Kernels that multiply no matrices of half precision."""
DTYPES = ("bfloat16", "float16", "float32")
HEAD_DIMS = (64, 80, 96, 128, 256)
VARIANCE_AND_OUTPUTS: tuple[Term, ...] = ("attn_variance", "obcache_joint")
TERM_SETS: tuple[tuple[Term, ...], ...] = (
    *((term,) for term in TERMS),
    ("attn", "attn_variance"),
    ("dispersion", "attn_variance"),
    VARIANCE_AND_OUTPUTS,
    TERMS,
)
"""Each score's own, those of CAKE, and what `make gpu-check` launches."""

Launch = tuple[str, Callable[[], object]]
"""A call that launches kernels, and what it is reported as."""


class Driver:
    """Stands in for Triton's driver: names the GPU to compile for, and runs nothing."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        """The GPU to compile for."""
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        """Compiled kernels are kept by device."""
        return self.arch

    def get_current_stream(self, device: int) -> int:
        """None is launched on it."""
        return device


@dataclass(frozen=True)
class Program:
    """A compiled kernel: registers and spilled bytes per thread, bytes of shared memory per block."""

    name: str
    label: str
    registers: int
    shared: int
    spilled: int
    tensor_cores: bool

    def faults(self, arch: int) -> Iterator[str]:
        """Why a GPU would refuse it, or run it slowly."""
        where = f"{self.name} {self.label}"
        if self.shared > SHARED[arch]:
            yield f"{where}: {self.shared} B of shared memory, sm_{arch} has {SHARED[arch]}"
        if self.spilled > SPILLS:
            yield f"{where}: {self.spilled} B spilled, allowed: {SPILLS}"
        multiplies = not any(name in self.name for name in ("float32", *WITHOUT_PRODUCTS))
        if multiplies and not self.tensor_cores:
            yield f"{where}: multiplies half precision without tensor cores"


def launches(dtype: torch.dtype, head_dim: int, choice: bool) -> Iterator[Launch]:
    """Every launch that compiles something else; or one of each kernel."""
    if choice:
        yield _sums(dtype, head_dim, VARIANCE_AND_OUTPUTS)
        yield _decode(dtype, head_dim, 4)
        yield _tail(dtype, head_dim, 4, softcap=30.0, sinks=torch.zeros(4))
        yield _slots(dtype, head_dim, planes=2, pools=True)
        yield _rows(dtype, head_dim, 4, softcap=30.0)
        yield _refined(dtype, head_dim, squared=False, fast=False)
        return
    for terms in TERM_SETS:
        for softcap in (None, 30.0):
            yield _sums(dtype, head_dim, terms, softcap=softcap)
        if set(terms) <= WITHOUT_DIAGONAL:
            yield _sums(dtype, head_dim, terms, diagonal=False)
    yield _sums(dtype, head_dim, ("attn",), rows=1, tokens=203)
    yield _sums(dtype, head_dim, TERMS, rows=37, tokens=203)
    heads = Segments(torch.tensor([0, 256]), torch.tensor([250, 100], dtype=torch.int32), 256)
    single: tuple[Term, ...] = ("attn", "obcache_joint")
    for term in single:
        yield _sums(dtype, head_dim, (term,), rows=1, segments=heads)
    yield _decode(dtype, head_dim, 4, fine=True)
    for rows, softcap in product((1, 4, 37), (None, 30.0)):
        yield _decode(dtype, head_dim, rows, softcap=softcap)
        for sinks in (None, torch.zeros(rows)):
            yield _tail(dtype, head_dim, rows, softcap=softcap, sinks=sinks)
    for planes, (pools, ordered) in product((1, 2), ((False, False), (True, False), (True, True))):
        yield _slots(dtype, head_dim, planes, pools, ordered)
    for group, softcap in product((1, 4, 8), (None, 30.0)):
        yield _rows(dtype, head_dim, group, softcap=softcap)
    yield _rows(dtype, head_dim, 4, state=(torch.zeros(2, 256), torch.ones(2, dtype=torch.int32)))
    for squared, fast in product((False, True), repeat=2):
        yield _refined(dtype, head_dim, squared, fast)


def _sums(
    dtype: torch.dtype, head_dim: int, terms: tuple[Term, ...], rows: int = 16, tokens: int = 256, **options: Any
) -> Launch:
    queries, keys = torch.zeros(8, rows, head_dim, dtype=dtype), torch.zeros(2, tokens, head_dim, dtype=dtype)
    keys = keys.flatten(0, 1) if "segments" in options else keys
    arrays = (queries, keys, keys, queries.float(), torch.zeros(8, rows))
    label = f"{'+'.join(terms)} rows={rows} tokens={tokens} {options or ''}"
    return label, partial(column_sums.column_sums, *arrays, 0.1, terms, **options)


def _decode(dtype: torch.dtype, head_dim: int, rows: int, **options: Any) -> Launch:
    queries, pairs = torch.zeros(3, rows, head_dim, dtype=dtype), torch.zeros(650, head_dim, dtype=dtype)
    lengths = torch.tensor([600, 50, 0])
    arrays = (queries, pairs, pairs, lengths.cumsum(0) - lengths, lengths)
    return f"rows={rows} {options or ''}", partial(ragged_decode.ragged_decode, *arrays, 0.1, longest=600, **options)


def _tail(dtype: torch.dtype, head_dim: int, rows: int, **options: Any) -> Launch:
    """Writing a new token of every segment, and joining the tails with the prefixes."""
    queries, keys = torch.zeros(3, rows, head_dim, dtype=dtype), torch.zeros(1, 3, 1, head_dim, dtype=dtype)
    tails, past = torch.zeros(2, 3, 64, head_dim, dtype=dtype), torch.zeros((), dtype=torch.long)

    def launch() -> None:
        tail.append(tails[0], tails[1], keys, keys, past)
        tail.with_tail(queries, queries.float(), queries[..., 0].float(), tails[0], tails[1], past, 1, 0.1, **options)

    return f"tail rows={rows} {'sinks' if options['sinks'] is not None else ''}", launch


def _slots(dtype: torch.dtype, head_dim: int, planes: int, pools: bool, ordered: bool = False) -> Launch:
    """Appending a pair to each segment, evicting the worst one, moving all pairs, and re-rotating keys."""
    numbers, scores = torch.zeros(planes, 2, 256, dtype=torch.int32), torch.zeros(2, 256)
    segments = Segments(torch.tensor([0, 256]), torch.tensor([250, 100], dtype=torch.int32), 256)
    sizes, pairs = torch.tensor([249, 120], dtype=torch.int32), torch.zeros(2, 512, head_dim, dtype=dtype)
    new, order = torch.zeros(1, 2, 1, head_dim, dtype=dtype), torch.tensor([1, 0]) if pools else None
    token = torch.zeros(1, dtype=torch.int32)

    def launch() -> None:
        slots.append(pairs, numbers, new, new, order, segments, token, pools)
        ranked = scores.expand(1 + pools, -1, -1).clone()
        places = scores.argsort() if ordered else None
        slots.evict(pairs, numbers, ranked, places, segments, sizes, sizes, sizes, sizes, token)
        slots.reorder(pairs, numbers, scores, scores.argsort(), segments, sizes, sizes, sizes, sizes)
        slots.turned(pairs[0], scores, sizes, segments, torch.ones(head_dim // 2), interleaved=pools)

    return f"slots planes={planes} pools={pools} ordered={ordered}", launch


def _rows(dtype: torch.dtype, head_dim: int, group: int, **options: Any) -> Launch:
    """The sums of one new token."""
    queries, pairs = torch.zeros(2, group, head_dim, dtype=dtype), torch.zeros(512, head_dim, dtype=dtype)
    segments = Segments(torch.tensor([0, 256]), torch.tensor([250, 100], dtype=torch.int32), 256)
    codes, lse = torch.zeros(2, dtype=torch.int32), torch.zeros(2, group)
    arrays = (queries, pairs, pairs, queries.float(), lse, segments, codes, codes, 0.1)
    return f"group={group} {options or ''}", partial(row_sums.row_sums, *arrays, **options)


def _refined(dtype: torch.dtype, head_dim: int, squared: bool, fast: bool) -> Launch:
    """The last steps of scores."""
    pairs, host = torch.zeros(512, head_dim, dtype=dtype), torch.zeros(2, 2, 256)
    segments = Segments(torch.tensor([0, 256]), torch.tensor([250, 100], dtype=torch.int32), 256)

    queries = torch.zeros(2, 4, head_dim // 2, dtype=torch.complex64)

    def launch() -> None:
        triattention.triattention(pairs, segments, queries, queries.real.contiguous(), queries[:1, 0], fast, "max")
        order = torch.zeros(2, 256, dtype=torch.int64) if squared else None
        pooled.pooled(host[0], order, *[segments.lengths] * 4)
        if squared and not fast:  # of key norms
            norms.weighed(None, pairs, segments, 2, None, host)
        norms.weighed(host, pairs, segments, 1 + squared, 3 if fast else None, host)
        norms.cur(pairs, pairs, segments, "kv_product", 16 if fast else None, 4)
        caote.caote(host, pairs, segments, squared, fast, 1e-12, host)
        cosines.key_diff(pairs, segments)
        lagkv.lag_scores(pairs, pairs, segments, 4, 64, fast)
        cosines.rkv(host, pairs, segments, 0.5, fast, 0.1, host)

    return f"refined squared={squared} fast={fast}", launch


def compiled(arch: int, dtype: str, head_dim: int, choice: bool) -> tuple[list[Program], list[str]]:
    """The programs that are launched on this GPU, each once; and what is wrong."""
    driver.set_active(Driver(arch))  # type: ignore[arg-type]
    group = f"sm_{arch} {dtype} head_dim {head_dim}"
    launched: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launched.append(run(self, *arguments, grid=grid, warmup=True, **options))

    def every_size(self: Any, *arguments: Any, **options: Any) -> None:
        self.nargs, before = dict(zip(self.arg_names, arguments, strict=False)), len(launched)
        for sizes in self.prune_configs(options):
            self.fn.run(*arguments, **options, **sizes.all_kwargs())
        if len({additions(kernel.asm["ttgir"]) for kernel in launched[before:]}) > 1:
            faults.append(f"{group} {label}: its sizes add in different orders")

    tune = Tuned.run
    JITFunction.run, Tuned.run = compile_only, every_size  # type: ignore[assignment]
    programs: dict[str, Program] = {}
    faults: list[str] = []
    for label, launch in launches(getattr(torch, dtype), head_dim, choice):
        launched.clear()
        try:
            launch()
        except Exception as error:
            reason = " ".join(str(error).split())[-300:]
            faults.append(f"{group} {label}: does not compile: {type(error).__name__}: {reason}")
        for kernel in launched:
            if kernel.hash not in programs:
                programs[kernel.hash] = measured(kernel, f"{group} {kernel.metadata.name}", label)
                faults += programs[kernel.hash].faults(arch)
    JITFunction.run, Tuned.run = run, tune
    return list(programs.values()), faults


def additions(code: str) -> frozenset[tuple[str, ...]]:
    """In which orders a kernel adds, by its code in Triton's GPU dialect: for each sum along a dimension how many
    numbers there are, and how they lie over registers, lanes and warps; for each product its instruction.
    """
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", code, re.MULTILINE))

    def along(layout: str, axis: int) -> str:
        """Return what of a layout the order along a dimension depends on."""
        if sliced := re.search(r"slice<\{dim = (\d), parent = (#\w+)", layout):
            return along(layouts[sliced[2]], axis + (axis >= int(sliced[1])))
        parts = re.findall(r"(sizePerThread|threadsPerWarp|warpsPerCTA|instrShape) = \[([\d, ]+)\]", layout)
        return " ".join(f"{name} {numbers.split(', ')[axis]}" for name, numbers in parts)

    found = set()
    sums = r'"tt\.reduce"\([^\n]*axis = (\d) : i32\}> \(\{(.*?)\}\) : \(tensor<([\dx]+)xf32, (#[^\n]*?)>\) ->'
    for axis, body, shape, layout in re.findall(sums, code, re.DOTALL):
        if "arith.addf" in body:
            found.add((shape.split("x")[int(axis)], along(layouts.get(layout, layout), int(axis))))
    for layout in re.findall(r"= tt\.dot .*-> tensor<[\dx]+xf32, (#\w+)>", code):
        found.add(("product", *re.findall(r"instrShape = \[[\d, ]+\]", layouts[layout])))
    return frozenset(found)


def measured(kernel: Any, name: str, label: str) -> Program:
    """What a compiled kernel takes, by its machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        tool = triton.knobs.nvidia.cuobjdump.path  # type: ignore[attr-defined]
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    numbers = dict(re.findall(r"(REG|STACK):(\d+)", usage.stdout + usage.stderr))
    tensor_cores = bool(re.search(r"wgmma\.mma_async|mma\.sync", kernel.asm["ptx"]))
    return Program(name, label, int(numbers["REG"]), kernel.metadata.shared, int(numbers["STACK"]), tensor_cores)


def main() -> None:
    """Compile, print, and exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, nargs="+", choices=tuple(SHARED), default=list(SHARED))
    parser.add_argument("--choice", action="store_true", help="one variant of each kernel")
    options = parser.parse_args()
    if programs.INTERPRETED:
        sys.exit("TRITON_INTERPRET is set, so that nothing would be compiled: unset it")
    torch.set_num_threads(1)
    groups = [("bfloat16", 128), ("float32", 256)] if options.choice else list(product(DTYPES, HEAD_DIMS))
    every: list[Program] = []
    wrong: list[str] = []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        tasks = [pool.submit(compiled, arch, *group, options.choice) for arch in options.arch for group in groups]
        for task in as_completed(tasks):
            finished, faults = task.result()
            every += finished
            wrong += faults
            for name in dict.fromkeys(program.name for program in finished):
                alike = [program for program in finished if program.name == name]
                registers, shared, spilled = (
                    max(getattr(program, what) for program in alike) for what in ("registers", "shared", "spilled")
                )
                numbers = f"{registers} registers, {shared} B shared memory, {spilled} B spilled"
                print(f"{name}: {len(alike)} variants, at most {numbers}", flush=True)
    print(f"{len(every)} variants, {len(wrong)} faults, triton {triton.__version__}")
    for fault in wrong:
        print(f"WRONG {fault}", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
