"""Attention of a segment in parts is attention over all of it, whichever parts are empty."""

import torch

from kvbench.cache.kernels.ragged_decode import merged, ragged_decode


def test_parts_merge_to_one_softmax_and_rows_without_a_pair_are_zero() -> None:
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(3, 2, 8, generator=generator, dtype=torch.float64)
    keys, values = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64).unbind()
    starts, lengths = torch.tensor([0, 5, 5]), torch.tensor([5, 7, 0])
    outputs, lse = ragged_decode(queries, keys, values, starts, lengths, 0.4, softcap=5.0)
    older = torch.tensor([0, 3, 0])  # pairs of the first part: none, some, none
    first = ragged_decode(queries, keys, values, starts, older, 0.4, softcap=5.0)
    second = ragged_decode(queries, keys, values, starts + older, lengths - older, 0.4, softcap=5.0)
    together = merged(*(torch.stack(parts) for parts in zip(first, second, strict=True)))
    torch.testing.assert_close(together[0], outputs)
    torch.testing.assert_close(together[1], lse)
    assert (outputs[2] == 0).all() and (lse[2] == -torch.inf).all() and (lse[:2] > -torch.inf).all()
