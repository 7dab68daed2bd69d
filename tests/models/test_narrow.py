"""Passes of fewer rows than a tile: taken only where they change no bit."""

from types import SimpleNamespace
from typing import Any

import torch

from kvbench.budget import parse_budget
from kvbench.eviction import Eviction
from kvbench.models import bridge
from kvbench.models.engine import Engine
from kvbench.models.narrow import Narrow, same_bits
from kvbench.models.tile import Tile
from kvbench.policy import Policy
from kvbench.scores.attn import Attention
from tests.models.conftest import tiny_llama


def test_answers_of_few_cells_have_the_bits_of_a_whole_tile(prompt: torch.Tensor) -> None:
    model = tiny_llama()
    bridge.attach(model)
    found = []
    question = torch.arange(11)
    for narrow in (Narrow(), Narrow(same_bits(model, 16))):
        engine = Engine(model, tile=16, narrow=narrow)
        prefilled = engine.prefill(prompt, {16})
        for cells in (1, 3, 7):
            shares = [f"0.{share}" for share in range(3, 3 + cells)]
            caches = [
                Eviction(Policy("snapkv", recent=8), Attention(), parse_budget(share))(prefilled.cache)
                for share in shares
            ]
            answers = engine.generate(prefilled, Tile(caches, engine.tile, 20), (), question=question)
            found.append([(answer.ids, answer.top2_margin) for answer in answers])
    assert found[:3] == found[3:]


class RowsCount:
    """A model whose first bits depend on the number of rows: below three it rounds otherwise."""

    def get_input_embeddings(self) -> Any:
        return SimpleNamespace(weight=torch.zeros(11, 3))

    def __call__(self, input_ids: torch.Tensor, **options: Any) -> Any:
        logits = input_ids[..., None].float().expand(-1, -1, 5)
        return SimpleNamespace(logits=logits * (1 + 2**-20) if len(logits) < 3 else logits)


def test_numbers_of_rows_that_change_a_bit_are_left_out() -> None:
    assert same_bits(RowsCount(), 9, tried=(1, 2, 3, 6, 9, 12)) == (3, 6)
