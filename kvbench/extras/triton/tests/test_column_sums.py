"""The one-pass kernel of column sums against its truth, in the interpreter; sizes that are no powers of two."""

import math
from itertools import product

import pytest
import torch

from kvbench.cache.kernels import column_sums as naive
from kvbench.cache.kernels.column_sums import TERMS
from kvbench.cache.kernels.ragged_decode import Segments
from kvbench.extras.triton import column_sums as fast
from kvbench.extras.triton.tests.loads import counted

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-4, torch.bfloat16: 3e-4}


def layer(rows, tokens, heads=4, kv_heads=2, head_dim=24, dtype=torch.float32, peak=1.0, seed=0, softcap=None):
    """A causal layer whose outputs and log-sum-exp belong to the newest rows; `peak` sharpens its attention."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(heads, rows, head_dim, generator=generator) * peak
    keys, values = torch.randn(2, kv_heads, tokens, head_dim, generator=generator)
    queries, keys, values = (part.to(dtype) for part in (queries, keys, values + 3))
    group = heads // kv_heads
    scaling = head_dim**-0.5
    logits = queries.double() @ keys.double().repeat_interleave(group, 0).mT * scaling
    if softcap is not None:
        logits = (logits / softcap).tanh() * softcap
    hidden = torch.arange(tokens) > torch.arange(tokens - rows, tokens)[:, None]
    logits = logits.masked_fill(hidden, -torch.inf)
    outputs = logits.softmax(-1) @ values.double().repeat_interleave(group, 0)
    return queries, keys, values, outputs, logits.logsumexp(-1), scaling


def truth(case, terms=TERMS, **options):
    *arrays, scaling = case
    return naive.column_sums(*(array.double() for array in arrays), scaling, terms, **options)


def kernel(case, terms=TERMS, **options):
    queries, keys, values, outputs, lse, scaling = case
    return fast.column_sums(queries, keys, values, outputs.float(), lse.float(), scaling, terms, **options)


def worst(sums, expected):
    """The largest error of each term, in parts of its largest value."""
    return {term: ((sums[term] - expected[term]).abs().max() / expected[term].abs().max()).item() for term in expected}


SHAPES = {
    "one_row": (1, 75, 4, 24),
    "few": (7, 75, 4, 24),
    "one_block": (16, 130, 2, 64),
    "ragged": (37, 70, 2, 80),
    "every_row": (70, 70, 2, 24),
}
"""Rows, tokens, heads over two KV heads, head width."""
OFTEN = {("one_row", torch.bfloat16), ("one_block", torch.float16)} | {(name, torch.float32) for name in SHAPES}
"""What is tried every time: every shape, and every dtype; the others are slow tests."""


@pytest.mark.parametrize(
    ("rows", "tokens", "heads", "head_dim", "dtype"),
    [
        pytest.param(*shape, dtype, marks=() if (name, dtype) in OFTEN else pytest.mark.slow, id=f"{name}-{dtype}")
        for (name, shape), dtype in product(SHAPES.items(), TOLERANCE)
    ],
)
def test_equals_the_formulas(rows, tokens, heads, head_dim, dtype):
    case = layer(rows, tokens, heads, head_dim=head_dim, dtype=dtype)
    terms = TERMS if rows > 1 else tuple(term for term in TERMS if term != "attn_variance")
    errors = worst(kernel(case, terms), truth(case, terms))
    assert max(errors.values()) < TOLERANCE[dtype], errors


def test_saturated_attention_is_resolved():
    case = layer(5, 61, peak=6.0)
    expected = truth(case)
    assert (naive.column_sums(*case[:-1], case[-1], ["attn_max"])["attn_max"] > 0.99).any()
    errors = worst(kernel(case), expected)
    assert max(errors.values()) < 1e-2, errors


def test_asked_terms_alone_are_computed_the_same():
    case = layer(5, 40, heads=2, kv_heads=1)
    every = kernel(case)
    for term in TERMS:
        assert torch.equal(kernel(case, (term,))[term], every[term]), term


@pytest.mark.parametrize("other", sorted(naive.WITH_OUTPUTS))
def test_variance_beside_a_term_that_reads_outputs(other):
    case = layer(17, 70, heads=2, kv_heads=1)
    errors = worst(kernel(case, ("attn_variance", other)), truth(case, ("attn_variance", other)))
    assert errors.keys() == {"attn_variance", other} and max(errors.values()) < TOLERANCE[torch.float32], errors


def test_columns_past_the_end_are_never_read():
    queries, keys, values, outputs, lse, scaling = layer(6, 67, heads=2)
    room_keys, room_values = (torch.full((2, 90, 24), torch.nan) for _ in range(2))
    room_keys[:, :67], room_values[:, :67] = keys, values
    inside = (queries, room_keys[:, :67], room_values[:, :67], outputs, lse, scaling)
    plain = kernel((queries, keys, values, outputs, lse, scaling))
    for term, sums in kernel(inside).items():
        assert torch.equal(sums, plain[term]), term


@pytest.mark.parametrize(
    ("rows", "heads", "peak", "block"), [(16, 1, 1.0, 128), (64, 4, 1.0, 64), (16, 4, 6.0, 64), (16, 4, 6.0, 128)]
)
def test_keys_and_values_are_read_once(rows, heads, peak, block, monkeypatch):
    """Whatever the number of rows and of heads that share them; a weight above one half reads its value again."""
    tokens = 192
    case = queries, keys, values, _, lse, scaling = layer(rows, tokens, heads, 1, 64, torch.bfloat16, peak)
    weights = (queries.double() @ keys.double().mT * scaling - lse[..., None]).exp().tril(tokens - rows)
    near = int((weights > 0.5).sum())
    assert (near > 0) == (peak > 1)

    def of_block(every, *_, **__):
        return [sizes for sizes in every if sizes.kwargs["BLOCK"] == block]

    sizes = {"_fastest": {}, "cache": {}, "early_config_prune": of_block}
    for name, changed in sizes.items():
        monkeypatch.setattr(fast._column_sums, name, changed)
    with counted({"keys": keys, "values": values}) as read:
        kernel(case, ("obcache_joint",))
    assert read["keys"] == keys.nbytes and read["values"] == values.nbytes + near * values[0, 0].nbytes
    if not near:  # queries, and outputs in two parts, for each block
        assert read["others"] == pytest.approx(3 * queries.nbytes * math.ceil(tokens / block), rel=0.1)


def test_bad_input_is_refused():
    case = layer(1, 20)
    with pytest.raises(ValueError, match="attn_variance of 1 observed row"):
        kernel(case, ("attn_variance",))
    with pytest.raises(ValueError, match="choose some of attn, attn_max"):
        kernel(case, ("attention",))
    with pytest.raises(ValueError, match=r"use model\.kernels=torch"):
        kernel((case[0].double(), *case[1:]), ("attn",))
    with pytest.raises(ValueError, match="diagonal=False with obcache_key"):
        kernel(case, ("obcache_key",), diagonal=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_soft_cap_is_honoured(dtype):
    case = layer(9, 70, dtype=dtype, peak=3.0, softcap=4.0)
    expected = truth(case, softcap=4.0)
    errors = worst(kernel(case, softcap=4.0), expected)
    assert max(errors.values()) < TOLERANCE[dtype], errors
    assert all(worst(truth(case), expected)[term] > 0.1 for term in ("attn", "obcache_key", "obcache_joint"))


def test_a_row_need_not_count_itself():
    terms = ("attn", "attn_max", "attn_squares", "attn_variance")
    case = layer(19, 60)
    expected = truth(case, terms, diagonal=False)
    assert (expected["attn"][:, -1] == 0).all() and (expected["attn"][:, -2] > 0).all()
    errors = worst(kernel(case, terms, diagonal=False), expected)
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)],
    ids=["bfloat16", "float32"],
)
def test_heads_of_different_lengths_have_the_bits_of_each_alone(dtype):
    """Between the pairs of two heads lies what nothing may read; columns beyond the pairs of a head are 0."""
    lengths, terms = (75, 3, 40), tuple(term for term in TERMS if term != "attn_variance")
    cases = [layer(1, tokens, 2, 1, dtype=dtype, peak=3.0, seed=tokens) for tokens in lengths]
    starts = torch.tensor([2, 79, 84])
    keys, values = torch.full((2, 126, 24), torch.nan, dtype=dtype)
    for (_, k, v, *_), start, length in zip(cases, starts.tolist(), lengths, strict=True):
        keys[start : start + length], values[start : start + length] = k[0], v[0]
    queries, outputs, lse = (torch.cat([case[at] for case in cases]) for at in (0, 3, 4))
    segments = Segments(starts, torch.tensor(lengths, dtype=torch.int32), 77)
    sums = kernel((queries, keys, values, outputs, lse, cases[0][-1]), terms, segments=segments)
    for number, (case, length) in enumerate(zip(cases, lengths, strict=True)):
        alone = kernel(case, terms)
        for term in terms:
            rows = sums[term][2 * number : 2 * number + 2]
            assert torch.equal(rows[:, :length], alone[term]) and not rows[:, length:].any(), term
