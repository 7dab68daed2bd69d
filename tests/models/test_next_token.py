"""Drawn tokens: their distribution, their bits, and where their numbers come from."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from kvbench.models.decode.next_token import Sampled, greedy, uniforms
from tests.pretended_gpu import PretendedGpu


def logits(cells: int = 1, vocabulary: int = 50) -> torch.Tensor:
    return 3 * torch.randn(cells, vocabulary, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5])
def test_shares_of_tokens_are_those_of_transformers_warpers(top_p: float) -> None:
    """Evenly spaced numbers hit each token as often as its probability says, to one in `draws`."""
    draws, scores = 20_000, logits()
    even = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    tokens, _ = Sampled(0.7, top_p, even[None])(scores.expand(draws, -1), 0)
    ids: Any = None
    warped = TopPLogitsWarper(top_p)(ids, TemperatureLogitsWarper(0.7)(ids, scores.double()))
    expected = draws * warped.softmax(dim=-1)[0]
    counts = torch.bincount(tokens, minlength=scores.shape[1])
    assert ((counts > 0) <= (expected > 0)).all() and (counts - expected).abs().max() <= 1.0


def test_tokens_whose_sum_is_exactly_top_p_are_enough() -> None:
    """Two of four that are equally likely, the lower ids, as of transformers' warper."""
    numbers = torch.tensor([[0.0, 0.49, 0.5, 0.999]], dtype=torch.float64)
    assert Sampled(1.0, 0.5, numbers)(torch.zeros(4, 4), 0)[0].tolist() == [0, 0, 1, 1]
    ids: Any = None
    assert TopPLogitsWarper(0.5)(ids, torch.zeros(1, 4).double()).isfinite().sum() == 2


def test_a_cell_draws_the_same_whatever_stands_beside_it() -> None:
    scores = logits(16, 151)
    numbers = torch.tensor(np.stack([uniforms(7, cell, 0, 3) for cell in range(16)], axis=1))
    for step in range(3):
        together, gaps = Sampled(1.0, 0.95, numbers)(scores, torch.tensor(step))
        for cell in range(16):
            alone, gap = Sampled(1.0, 0.95, numbers[:, cell : cell + 1])(scores[cell : cell + 1], step)
            assert alone == together[cell] and gap == gaps[cell]


@pytest.mark.parametrize("cells", [1, 16])
def test_a_gpu_draws_as_a_cpu_by_sums_whose_order_does_not_matter(cells: int) -> None:
    scores, numbers = logits(cells, 5000), torch.tensor(np.stack([uniforms(7, cell, 0, 9) for cell in range(cells)], 1))
    with PretendedGpu(interpret=False) as gpu:
        on_gpu = Sampled(1.0, 0.95, numbers.to("cuda"))
        drawn = [on_gpu(scores.to("cuda"), step)[0].tolist() for step in range(9)]
    assert drawn == [Sampled(1.0, 0.95, numbers)(scores, step)[0].tolist() for step in range(9)]
    assert not gpu.unordered and not gpu.mixed


def test_the_ends_of_the_scale_are_tokens() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 1.0, 1.0]])
    for number, token in ((0.0, 2), (1 - 2**-53, 0)):
        assert Sampled(1.0, 1.0, torch.tensor([[number]], dtype=torch.float64))(scores, 0)[0] == token
    assert Sampled(1e-4, 1.0, torch.tensor([[0.49]], dtype=torch.float64))(scores, 0)[0] == 2
    assert Sampled(1.0, 1e-9, torch.tensor([[0.99]], dtype=torch.float64))(scores, 0)[0] == 2
    broken = Sampled(1.0, 1.0, torch.tensor([[0.5]], dtype=torch.float64))(torch.full((1, 4), torch.nan), 0)
    assert not broken[1].isfinite().any() and 0 <= broken[0] < 4
    token, gap = greedy(scores)
    assert token == 2 and gap == 0, "the first of equals, as transformers' argmax chooses"


def test_numbers_depend_on_seed_prompt_answer_and_step_alone() -> None:
    many = uniforms(42, 3, 1, 4096)
    assert (uniforms(42, 3, 1, 10) == many[:10]).all() and many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.02 and abs(many.std() - 12**-0.5) < 0.01
    assert len({uniforms(*key, 1)[0] for key in ((42, 3, 1), (42, 3, 2), (42, 4, 1), (43, 3, 1), (42, 31, 0))}) == 5
    first = int.from_bytes(hashlib.shake_256(b"42 3 1").digest(8), "little")
    assert many[0] == (first >> 11) / 2**53
