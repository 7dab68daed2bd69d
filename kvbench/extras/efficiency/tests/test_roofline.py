"""Work reckoned by hand, by loops, and as CAOTE prints it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbench.extras.efficiency import roofline
from tests.models.conftest import tiny_llama

SHAPE = roofline.Shape(inner=1000, head=70, bytes_each=2, heads=6, kv_heads=3, head_dim=5, windows=(None, 4))


def test_prefill_by_hand() -> None:
    """7 tokens: 28 pairs in the layer that sees all, 1+2+3+4+4+4+4 = 22 in the other, 120 operations each."""
    assert roofline.prefill_flops(SHAPE, 7) == 2 * 1000 * 7 + 2 * 70 + 120 * (28 + 22)
    assert roofline.prefill_flops(SHAPE, 7, passes=3) - roofline.prefill_flops(SHAPE, 7) == 2 * 2 * 70
    assert roofline.prefill_bytes(SHAPE, 7, passes=2) == 2 * 2140 + 2 * 3 * 7 * 20


def test_a_step_by_hand() -> None:
    """Two sequences of 30 and 12 pairs that 2 and 1 query heads read, 3 new tokens in 2 layers of 6 heads each."""
    assert roofline.step_flops(SHAPE, [(30, 2), (12, 1)], 3) == 2 * 1070 * 2 + 20 * (60 + 12 + 2 * 2 * 6 * 3)
    assert roofline.step_bytes(SHAPE, 840, 60) == 2140 + 840 + 60


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(1, 70)))
def test_pairs_are_those_of_a_mask(tokens: int, window: int | None) -> None:
    seen = sum(1 for query in range(tokens) for key in range(query + 1) if window is None or query - key < window)
    assert roofline.attended_pairs(tokens, window) == seen


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 10**6), st.integers(1, 10**6))
def test_more_tokens_and_more_pairs_move_more(tokens: int, more: int, held: int, added: int) -> None:
    assert roofline.prefill_bytes(SHAPE, tokens + more) > roofline.prefill_bytes(SHAPE, tokens)
    assert roofline.prefill_flops(SHAPE, tokens + more) > roofline.prefill_flops(SHAPE, tokens)
    assert roofline.step_bytes(SHAPE, held + added, 1) > roofline.step_bytes(SHAPE, held, 1)
    assert roofline.score_bytes(10**7, held + added) > roofline.score_bytes(10**7, held)


def test_the_shape_of_a_model_counts_its_matrices() -> None:
    model = tiny_llama(vocab_size=90)
    shape, config = roofline.shape_of(model), model.config
    layers = config.num_hidden_layers * (
        2 * config.hidden_size * config.num_attention_heads * config.head_dim
        + 2 * config.hidden_size * config.num_key_value_heads * config.head_dim
        + 3 * config.hidden_size * config.intermediate_size
    )
    assert (shape.inner, shape.head) == (layers, 90 * config.hidden_size)
    assert (shape.heads, shape.kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    assert len(shape.windows) == config.num_hidden_layers
    assert roofline.weight_bytes(model) > shape.pass_bytes * (torch.float32.itemsize // shape.bytes_each) - 1
