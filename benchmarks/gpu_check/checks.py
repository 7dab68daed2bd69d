"""Correctness: every fast twin against its truth in float64, on the device that it will run on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu_check.arrays import layer, segments
from kvbench.cache.attention import AttentionParams, explicit, fused, observe
from kvbench.cache.kernels import column_sums as sums_truth
from kvbench.cache.kernels import ragged_decode as decode_truth
from kvbench.cache.kernels.choice import check_kernels, column_sums_of, ragged_decode_of
from kvbench.cache.kernels.column_sums import TERMS, Term

SUMS = {torch.float32: 5e-5, torch.float16: 3e-4, torch.bfloat16: 3e-4}
"""Largest error of a sum, in parts of its largest value: all are accumulated in float32."""
OUTPUTS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
"""Largest error of an output of values around 1: the weights are rounded to the type of the values."""
SOFTCAP = 8.0


@dataclass(frozen=True)
class Check:
    """One comparison: the largest error found and the largest allowed, or why it was not made."""

    name: str
    error: float | None = None
    allowed: float | None = None
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it was made and the error is allowed, NaN not being; what cannot be made here does not fail."""
        return self.skipped is not None or bool(self.error is not None and self.error <= (self.allowed or 0))


def checks(device: torch.device, small: bool) -> Iterator[Check]:
    """All of them; `small` sizes are for the interpreter."""
    yield from _sums(device, small)
    yield from _decode(device, small)
    yield from _prefill(device, small)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sums(device: torch.device, small: bool) -> Iterator[Check]:
    kernel = column_sums_of("triton")
    assert kernel is not None
    sizes = [(16, 70, 24), (37, 37, 40)] if small else [(16, 1003, 64), (37, 999, 80), (64, 1500, 128), (301, 301, 128)]
    sizes += [] if small else [(33, 700, 256), (1, 515, 96)]
    options: list[dict[str, Any]] = [{}, {"softcap": SOFTCAP}, {"sinks": True}]
    heads, kv_heads = (2, 1) if small else (8, 2)
    for dtype in SUMS:
        for rows, tokens, head_dim in sizes:
            terms: tuple[Term, ...] = tuple(term for term in TERMS if rows > 1 or term != "attn_variance")
            for option in options if rows == 16 and (dtype == torch.float32 or not small) else options[:1]:
                case = layer(rows, tokens, heads if head_dim < 256 else 4, kv_heads, head_dim, dtype, device, **option)
                cap = option.get("softcap")
                expected = sums_truth.column_sums(*case.arrays(torch.float64), case.scaling, terms, softcap=cap)
                output = kernel(*case.arrays(), case.scaling, terms, softcap=cap)
                worst = max(
                    ((output[term] - expected[term]).abs().max() / expected[term].abs().max()).item() for term in terms
                )
                label = " ".join(option) or "plain"
                name = f"column sums {_name(dtype)} {rows} rows {tokens} tokens head_dim {head_dim} {label}"
                yield Check(name, worst, SUMS[dtype])
    case = layer(*sizes[0][:2], heads, kv_heads, 64, torch.bfloat16, device)
    once, again = (kernel(*case.arrays(), case.scaling, TERMS) for _ in range(2))
    yield Check("column sums: twice gives the same bits", float(any((once[t] != again[t]).any() for t in TERMS)), 0.0)


def _decode(device: torch.device, small: bool) -> Iterator[Check]:
    lengths = (0, 1, 37, 130) if small else (0, 1, 37, 512, 513, 1999, 4100)
    for kernels in ("triton", "flash_attn", "varlen"):
        for dtype in OUTPUTS:
            try:
                check_kernels(kernels, device, dtype)
            except ValueError as error:
                yield Check(f"ragged decode {kernels} {_name(dtype)}", skipped=str(error))
                continue
            decode = ragged_decode_of(kernels)
            assert decode is not None
            for head_dim in (64,) if small else (64, 80, 128, 256):
                for rows in (4,) if small else (1, 4, 37):
                    for cap in (None, SOFTCAP) if rows == 4 and kernels != "varlen" else (None,):
                        what = f"{rows} rows head_dim {head_dim}" + (" softcap" if cap else "")
                        name = f"ragged decode {kernels} {_name(dtype)} {what}"
                        case = segments(lengths, rows, head_dim, dtype, device, gap=3 if kernels == "triton" else 0)
                        yield _decoded(name, decode, case.arrays, cap, OUTPUTS[dtype])
    decode = ragged_decode_of("triton")
    assert decode is not None
    queries, keys, values, starts, held = segments(lengths, 4, 64, torch.bfloat16, device).arrays
    together, _ = decode(queries, keys, values, starts, held, 0.2)
    apart = 0.0
    for head in range(1, len(lengths)):
        this = slice(head, head + 1)
        alone, _ = decode(queries[this], keys, values, starts[this], held[this], 0.2)
        apart = max(apart, float((alone[0] != together[head]).any()))
    yield Check("ragged decode triton: a segment has the same bits alone and in company", apart, 0.0)


def _decoded(name: str, decode: Callable, arrays: tuple, cap: float | None, allowed: float) -> Check:
    scaling = arrays[0].shape[-1] ** -0.5
    queries, keys, values, starts, lengths = arrays
    wide = queries.double(), keys.double(), values.double()
    expected, expected_lse = decode_truth.ragged_decode(*wide, starts, lengths, scaling, softcap=cap)
    try:
        output, lse = decode(*arrays, scaling, softcap=cap)
    except Exception as error:  # another package's refusal is a finding about this machine, not the end of the check
        if "triton" in name:
            raise
        return Check(name, skipped=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}")
    seen = arrays[4] > 0
    off = torch.stack(((output - expected).abs().max(), (lse - expected_lse)[seen].abs().max()))
    empty = not ((lse[~seen] == -torch.inf).all() and (output[~seen] == 0).all())
    return Check(name, off.max().item() + float(empty), allowed)


def _prefill(device: torch.device, small: bool) -> Iterator[Check]:
    tokens, rows = (130, 50) if small else (3001, 700)
    for dtype in OUTPUTS:
        for label, rule in (("plain", AttentionParams(0.125)), ("window", AttentionParams(0.125, sliding_window=99))):
            case = layer(rows, tokens, 8, 2, 64, dtype, device)
            output = fused(case.queries, case.keys, case.values, rule).double()
            expected = explicit(case.queries.double(), case.keys.double(), case.values.double(), rule)
            yield Check(f"prefill {_name(dtype)} {label}", (output - expected).abs().max().item(), 5 * OUTPUTS[dtype])
        case = layer(16, tokens, 8, 2, 64, dtype, device)
        lse = observe(case.queries, case.outputs, case.keys, AttentionParams(case.scaling)).lse
        yield Check(f"log-sum-exp of a window {_name(dtype)}", (lse - case.lse).abs().max().item(), 2e-4)
