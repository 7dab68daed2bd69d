"""The split kernel of ragged attention against its truth, in the interpreter."""

from itertools import product

import pytest
import torch

from kvbench.cache.kernels import ragged_decode as naive
from kvbench.extras.triton import ragged_decode as fast
from kvbench.extras.triton.ragged_decode import ragged_decode as kernel

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
LENGTHS = (0, 1, 37, 512, 550)


def segments(lengths=LENGTHS, rows=3, head_dim=40, dtype=torch.float32, seed=0):
    """Queries and segments with NaN in the gaps between them, which nothing may read."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(len(lengths), rows, head_dim, generator=generator).to(dtype)
    gap, starts, total = 3, [], 3
    for length in lengths:
        starts.append(total)
        total += length + gap
    keys, values = torch.full((2, total, head_dim), torch.nan).to(dtype)
    for start, length in zip(starts, lengths, strict=True):
        part = torch.randn(2, length, head_dim, generator=generator).to(dtype)
        keys[start : start + length], values[start : start + length] = part
    return queries, keys, values, torch.tensor(starts), torch.tensor(lengths)


def truth(case, scaling, **options):
    return naive.ragged_decode(*(part.double() for part in case[:3]), *case[3:], scaling, **options)


ROWS = {"one_row": 1, "group": 5, "question": 19}
OFTEN = {(1, torch.float32), (5, torch.float16), (5, torch.bfloat16), (19, torch.float32)}
"""What is tried every time: every number of rows, and every dtype; the others are slow tests."""


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        pytest.param(rows, dtype, marks=() if (rows, dtype) in OFTEN else pytest.mark.slow, id=f"{name}-{dtype}")
        for (name, rows), dtype in product(ROWS.items(), TOLERANCE)
    ],
)
def test_equals_one_after_the_other(dtype, rows):
    case = segments(rows=rows, dtype=dtype)
    expected, expected_lse = truth(case, 0.2)
    outputs, lse = kernel(*case, 0.2)
    assert (outputs - expected).abs().max() < TOLERANCE[dtype]
    assert lse[0].eq(-torch.inf).all() and outputs[0].eq(0).all()
    assert (lse[1:] - expected_lse[1:]).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_fine_outputs_are_as_precise_as_float32(dtype):
    case = segments(rows=2, dtype=dtype)
    expected, _ = truth(case, 0.2)
    outputs, _ = kernel(*case, 0.2, fine=True)
    assert (outputs - expected).abs().max() < 2e-5


def test_more_splits_than_are_merged_at_a_time(monkeypatch):
    monkeypatch.setattr(fast, "MERGED", 4)
    case = segments(lengths=(4 * fast.SPLIT + 100, 0, 3 * fast.SPLIT), rows=2, head_dim=16)
    expected, expected_lse = truth(case, 0.9)
    outputs, lse = kernel(*case, 0.9)
    assert (outputs - expected).abs().max() < 2e-6 and (lse - expected_lse)[::2].abs().max() < 1e-5


def test_a_soft_cap_is_honoured():
    case = segments(lengths=(70, 130))
    expected, expected_lse = truth(case, 1.0, softcap=5.0)
    outputs, lse = kernel(*case, 1.0, softcap=5.0)
    assert (outputs - expected).abs().max() < 5e-6 and (lse - expected_lse).abs().max() < 1e-5


def test_a_segment_does_not_depend_on_its_company():
    queries, keys, values, starts, lengths = segments()
    together, _ = kernel(queries, keys, values, starts, lengths, 0.2)
    for segment in range(1, len(LENGTHS)):
        selected = slice(segment, segment + 1)
        alone, _ = kernel(queries[selected], keys, values, starts[selected], lengths[selected], 0.2)
        assert torch.equal(alone[0], together[segment])


def test_parts_merge_into_the_whole():
    queries, keys, values, starts, lengths = segments(lengths=(40, 90), dtype=torch.float64)
    whole, whole_lse = naive.ragged_decode(queries, keys, values, starts, lengths, 0.2)
    head = torch.tensor([0, 25])
    old = naive.ragged_decode(queries, keys, values, starts, head, 0.2)
    new = naive.ragged_decode(queries, keys, values, starts + head, lengths - head, 0.2)
    outputs, lse = naive.merged(torch.stack((old[0], new[0])), torch.stack((old[1], new[1])))
    assert (outputs - whole).abs().max() < 1e-12 and (lse - whole_lse).abs().max() < 1e-12


def test_float64_is_refused():
    with pytest.raises(ValueError, match=r"use model\.kernels=torch"):
        kernel(*segments(dtype=torch.float64), 0.2)
