"""Linear layers whose rows have the same bits in any company, by each kind of product."""

from typing import Any

import pytest
import torch
from torch import nn

from kvbench.models import bridge, linear_layers
from kvbench.models.linear_layers import (
    LAYERS,
    MixedLinear,
    OneDnnLinear,
    PaddedLinear,
    Products,
    linear_layers_agree,
    use_products,
)
from kvbench.models.prefill import Prefill
from tests.models.conftest import tiny_llama


@pytest.mark.parametrize("products", LAYERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inside", "out"), [(24, 31), (96, 200), (1500, 40)])
def test_products_are_those_of_torch(inside: int, out: int, bias: bool, products: Products) -> None:
    plain = nn.Linear(inside, out, bias=bias)
    layer = LAYERS[products](plain)
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


def test_mixed_products_are_torchs_in_prompts_and_onednns_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, multiplied = tiny_llama(), []
    use_products(model, "mixed")
    bridge.attach(model)
    by_onednn = OneDnnLinear.multiply
    monkeypatch.setattr(OneDnnLinear, "multiply", lambda *args: multiplied.append(args) or by_onednn(*args))
    bridge.forward(model, torch.arange(9)[None], 0, Prefill(9, ()))
    assert not multiplied and isinstance(model.lm_head, MixedLinear)
    bridge.forward(model, torch.arange(9)[None], 0, bridge.TrialCache())
    assert len(multiplied) == sum(isinstance(module, PaddedLinear) for module in model.modules())


@pytest.mark.parametrize("products", LAYERS)
def test_fewer_rows_are_multiplied_where_they_have_the_same_bits(
    products: Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a trial of every shape. Prompts of `mixed` are torch's, whose single row has other bits."""

    def least(differs: bool) -> set[int]:
        def multiply(layer: PaddedLinear, rows: torch.Tensor) -> torch.Tensor:
            return rows @ layer.weight.mT * 0 + (differs and len(rows) == 3)

        monkeypatch.setattr(LAYERS[products], "multiply", multiply)
        model = tiny_llama()
        use_products(model, products)
        return {layer.least_rows for layer in model.modules() if isinstance(layer, PaddedLinear)}

    assert least(differs=True) == {linear_layers.SAFE_ROWS}
    assert least(differs=False) == {1}
    monkeypatch.setattr(bridge, "reads_alone", lambda: True)
    assert least(differs=False) == {linear_layers.SAFE_ROWS if products == "mixed" else 1}


def test_what_torch_multiplies_itself_is_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model as it was loaded, or whose one layer goes by the number of rows."""
    model = tiny_llama()
    assert not linear_layers_agree(model)
    use_products(model, "onednn")
    assert linear_layers_agree(model) and isinstance(model.lm_head, OneDnnLinear)
    forward = OneDnnLinear.forward

    def by_rows(layer: OneDnnLinear, inputs: torch.Tensor) -> Any:
        return forward(layer, inputs) * (1 + 2**-20 * (len(inputs) == 13 and layer is model.lm_head))

    monkeypatch.setattr(OneDnnLinear, "forward", by_rows)
    assert 13 in linear_layers.LINEAR_ROWS and not linear_layers_agree(model)
