"""Packed linear layers: the products of torch, and the same bits for a row in any company."""

from typing import Any

import pytest
import torch
from torch import nn

from kvbench.models import batch_invariance
from kvbench.models.batch_invariance import OneDnnLinear, linear_layers_agree, use_onednn
from tests.models.conftest import tiny_llama


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inside", "out"), [(24, 31), (96, 200), (1500, 40)])
def test_products_are_those_of_torch(inside: int, out: int, bias: bool) -> None:
    plain = nn.Linear(inside, out, bias=bias)
    layer = OneDnnLinear(plain)
    assert torch.equal(layer.weight, plain.weight)
    with torch.inference_mode():
        for shape in ((1,), (3, 1), (2, 5), (0,), (7, 1, 9)):
            inputs = torch.randn(*shape, inside)
            assert layer(inputs).shape == (*shape, out)
            assert torch.allclose(layer(inputs), plain(inputs), atol=1e-5)


@pytest.mark.parametrize("inside", [24, 300, 1500], ids=lambda inside: f"{inside} columns")
def test_a_row_has_the_same_bits_in_any_company(inside: int) -> None:
    """Alone too, where oneDNN sums long rows in another order."""
    layer, inputs = OneDnnLinear(nn.Linear(inside, 70)), torch.randn(97, inside)
    with torch.inference_mode():
        whole = layer(inputs)
        for start, rows in ((0, 1), (50, 1), (3, 2), (20, 3), (5, 4), (0, 17), (40, 57)):
            assert torch.equal(layer(inputs[start : start + rows]), whole[start : start + rows])


def test_what_torch_multiplies_itself_is_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model as it was loaded, one in another type, or whose one layer goes by the number of rows."""
    model = tiny_llama()
    assert not linear_layers_agree(model)
    use_onednn(model)
    assert linear_layers_agree(model) and isinstance(model.lm_head, OneDnnLinear)
    wide = tiny_llama(torch.float64)
    use_onednn(wide)
    assert isinstance(wide.lm_head, nn.Linear) and not linear_layers_agree(wide)
    forward = OneDnnLinear.forward

    def by_rows(layer: OneDnnLinear, inputs: torch.Tensor) -> Any:
        return forward(layer, inputs) * (1 + 2**-20 * (len(inputs) == 13 and layer is model.lm_head))

    monkeypatch.setattr(OneDnnLinear, "forward", by_rows)
    assert 13 in batch_invariance.LINEAR_ROWS and not linear_layers_agree(model)
