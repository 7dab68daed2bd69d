"""Passes of fewer rows than a tile: taken only where they change no bit."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from kvbench.eviction.allocation.heads import SafeguardHeads
from kvbench.eviction.budget import parse_budget
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.attn import Attention
from kvbench.models import bridge
from kvbench.models.batch_invariance import BatchInvariance, functions_of, invariance_of, same_bits
from kvbench.models.decode.batch import RaggedBatch
from kvbench.models.engine import Engine
from kvbench.models.linear_layers import LAYERS, Products, linear_layers_agree, use_products
from tests.models.conftest import PROMPT, tiny_llama


def attached(dtype: torch.dtype = torch.float32, products: Products | None = None) -> Any:
    model = tiny_llama(dtype)
    if products is not None:
        use_products(model, products)
    bridge.attach(model)
    return model


@pytest.mark.parametrize("products", [None, *LAYERS])
def test_answers_of_few_cells_have_the_bits_of_a_whole_tile(products: Products | None) -> None:
    model, question, generated = attached(products=products), torch.arange(11), []
    few = invariance_of(model, 16)
    assert few.any_rows == (products is not None and linear_layers_agree(model))
    assert products in (None, "torch") or few.any_rows, "torch's products depend on the processor"
    assert [few.rows(16, cells, 11) for cells in (1, 3, 7)] == ([4, 4, 8] if few.any_rows else [16] * 3)
    for narrow in (BatchInvariance(), few):
        engine = Engine(model, max_batch=16, batch_invariance=narrow)
        prefilled = engine.prefill(PROMPT, {16})
        for cells in (1, 3, 7):
            shares = [parse_budget(f"0.{share}") for share in range(3, 3 + cells)]
            caches = [Eviction(Policy("snapkv", recent=8), Attention(), share)(prefilled.cache) for share in shares]
            answers = engine.generate(prefilled, RaggedBatch(caches, engine.max_batch, 20), (), question=question)
            generated.append([(answer.ids, answer.top2_margin) for answer in answers])
    assert generated[:3] == generated[3:]


@pytest.mark.parametrize("products", [None, *LAYERS])
def test_stopped_cells_leave_the_batch_and_change_no_bit(
    products: Products | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that stop at different steps; the policies keep heads of equal and of different lengths."""
    model = attached(products=products)
    engine = Engine(model, max_batch=8, batch_invariance=invariance_of(model, 8))
    prefilled = engine.prefill(PROMPT, {16})
    policies = (Policy("snapkv", recent=8), Policy("ada_snapkv", recent=8, heads=SafeguardHeads(alpha=0.2)))
    shares = [(policy, f"0.{share}") for share in (2, 4, 6, 8) for policy in policies]
    caches = [Eviction(policy, Attention(), parse_budget(share))(prefilled.cache) for policy, share in shares]

    def answers(narrows: bool, stop: tuple[int, ...]) -> tuple[list[tuple[Any, float]], list[int], list[int]]:
        batch = RaggedBatch(caches, engine.max_batch, 30)
        if not narrows:
            monkeypatch.setattr(batch, "narrow", lambda cells: None)
        generated = engine.generate(prefilled, batch, stop, question=torch.arange(5))
        return [(answer.ids, answer.top2_margin) for answer in generated], batch.order, batch.peak_bytes

    whole = answers(False, ())[0]
    stop = tuple({ids[step] for (ids, _), step in zip(whole, (3, 5, 9, 9, 14, 14, 20, 20), strict=True)})
    kept, narrowed = answers(False, stop), answers(True, stop)
    assert narrowed[0] == kept[0] and narrowed[2] == kept[2]
    assert len({len(ids) for ids, _ in kept[0]}) > 1 and kept[1] == list(range(8)) != narrowed[1]


def test_passes_end_where_vectors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions over the numbers of all tokens, or over a thread's share of them, leave no part of a vector over."""
    narrow = BatchInvariance(any_rows=True, widths=(1536, 64))
    rows = [narrow.rows(16, cells, new) for cells, new in ((1, 1), (3, 1), (5, 7), (16, 1), (20, 1))]
    assert rows == [1, 3, 5, 16, 16]
    assert [BatchInvariance(any_rows=True, widths=(24,)).rows(16, cells, 1) for cells in (1, 4, 5, 13)] == [4, 4, 8, 16]
    assert BatchInvariance(any_rows=True, widths=(5,)).rows(16, 1, 1) == 32
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert 50 * 7 * 96 > 2**15 and 50 * 7 * 96 % 32 == 0 and 50 * 7 * 48 % 32 == 0
    assert BatchInvariance(any_rows=True, widths=(96,)).rows(64, 50, 7) == 50
    assert BatchInvariance(any_rows=True, widths=(96 * 11,)).rows(64, 5, 7) == 6, (
        "36960 numbers are two shares of 18480, which is no multiple"
    )


def test_a_whole_batch_ends_where_vectors_do() -> None:
    """Three rows of 80 numbers leave half a vector to a routine with other last bits: its last row would differ."""
    invariance = functions_of(attached())
    assert 80 in invariance.widths and invariance.vector == 32
    assert [invariance.rows(3, cells, new) for cells, new in ((1, 1), (3, 1), (3, 2), (1, 5))] == [4, 4, 4, 4]
    assert [replace(invariance, steps=(1, 2)).rows(3, cells, 1) for cells in (1, 2, 3)] == [4, 4, 4]
    assert replace(invariance, steps=(2,), widths=(16,)).rows(3, 1, 1) == 2
    assert functions_of(attached(torch.bfloat16)).vector == 64


@pytest.mark.parametrize(("cells", "new"), [(3, 1), (3, 7), (5, 1), (5, 2), (5, 9), (6, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_cells_have_equal_bits_wherever_they_stand(dtype: torch.dtype, cells: int, new: int) -> None:
    model = attached(dtype)
    ids = torch.randint(97, (1, new), generator=torch.Generator().manual_seed(new))
    reader = bridge.TrialCache()
    logits = bridge.logits(model, ids.expand(functions_of(model).rows(cells, cells, new), -1), 3, reader, new)
    for rows in (logits, reader.queries[2], reader.keys[2], reader.values[2]):
        assert all(torch.equal(row, rows[0]) for row in rows)


def test_models_that_multiply_otherwise_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of all rows that is no linear layer: the numbers of rows that agree are all that is known."""
    model = attached(products="onednn")
    norm = type(model.model.norm).forward
    monkeypatch.setattr(type(model.model.norm), "forward", lambda self, x: norm(self, x) + 0 * (x @ torch.ones(48, 48)))
    assert not invariance_of(model, 16).any_rows


class RowsCount(torch.nn.Module):
    """A model whose first bits depend on the number of rows: below three it rounds otherwise."""

    config = LlamaConfig()

    def get_input_embeddings(self) -> Any:
        return SimpleNamespace(weight=torch.zeros(11, 3))

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **options: Any) -> Any:
        logits = input_ids[..., None].float().expand(-1, -1, 5)
        return SimpleNamespace(logits=logits * (1 + 2**-20) if len(logits) < 3 else logits)


def test_numbers_of_rows_that_change_a_bit_are_left_out() -> None:
    assert same_bits(RowsCount(), 9, tried=(1, 2, 3, 6, 9, 12)) == (3, 6)
