"""Sums of a single new token by the kernel, against the reference in float64: every sum and every merge at once."""

import pytest
import torch

from kvbench.cache.kernels.ragged_decode import Segments, ragged_decode
from kvbench.eviction.scores.ragged import MERGES, ROW_TERMS
from kvbench.extras.triton import row_sums as fast
from kvbench.extras.triton.row_sums_reference import row_sums

SCALING, HEAD_DIM = 0.4, 24


@pytest.mark.parametrize(("group", "softcap"), [(1, None), (3, 5.0)])
def test_segments_of_every_sum(group: int, softcap: float | None) -> None:
    """Some hold one pair, which then has all the weight; a head counts on what is there where it adds up."""
    merges = [merge for merge in MERGES if (merge == "none") == (group == 1)]
    every = [(term, merge) for term in ROW_TERMS for merge in merges]
    pairs = every + every[::4]
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 70, (len(pairs),), generator=draw)
    lengths[len(every) :] = 1
    segments = Segments(lengths.cumsum(0) - lengths, lengths.int(), int(lengths.max()))
    queries = 2 * torch.randn(len(pairs), group, HEAD_DIM, generator=draw)
    keys, values = torch.randn(2, int(lengths.sum()), HEAD_DIM, generator=draw)
    wide = (queries.double(), keys.double(), values.double())
    outputs, lse = ragged_decode(*wide, segments.starts, segments.lengths, SCALING, softcap)
    terms, named = [term for term, _ in pairs], [merge for _, merge in pairs]
    expected = row_sums(*wide, outputs, lse, segments, terms, named, SCALING, softcap)
    arrays = queries, keys, values, outputs.float(), lse.float(), segments
    by_word = ([fast.CODES[word] for word in words] for words in (terms, named))
    codes = [torch.tensor(numbers, dtype=torch.int32) for numbers in by_word]
    sums = fast.row_sums(*arrays, *codes, SCALING, softcap)
    assert torch.allclose(sums.double(), expected, rtol=1e-3, atol=1e-5)

    state = torch.rand(sums.shape, generator=draw)
    before, adds = state.clone(), torch.arange(len(pairs)).int() % 3
    added = fast.row_sums(*arrays, *codes, SCALING, softcap, (state, adds))
    assert added is state
    for number, length in enumerate(lengths.tolist()):
        old = before[number] if adds[number] or terms[number] == "nothing" else torch.zeros(())
        assert torch.allclose(state[number, :length], (old + sums[number])[:length], rtol=1e-5)
        behind = sums if terms[number] == "logit" else before
        assert torch.equal(state[number, length:], behind[number, length:])
