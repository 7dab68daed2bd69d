"""CapKV by its formula, in float64."""

from dataclasses import replace

import pytest
import torch

from kvbench.eviction.scores import expected_attention
from kvbench.eviction.scores.expected_attention import Cap
from kvbench.support.errors import UserError
from tests.arrays import random_layer


@pytest.mark.parametrize(
    ("tau", "normalize", "size"),
    [(2, True, 1), (2, False, 1), pytest.param(20, True, 30, id="values so large that the epsilon counts")],
)
def test_a_score_is_the_leverage_of_a_value(
    tau: int, normalize: bool, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_attention, "COLUMN_CHUNK", 17)
    layer, expected = random_layer(60), []
    layer = replace(layer, values=layer.values * size)
    keys, values = (part[:, 4:].double() for part in layer.dense)
    for head, query in enumerate(layer.future_queries[0].mean.double()):
        key, value = keys[head // 3], values[head // 3]
        along = key @ query / (key.norm(dim=1) * query.norm() if normalize else 1)
        weights = torch.exp(tau * (along - along.max()))
        capacity = torch.eye(10).double() + sum((w + 1e-6) * torch.outer(v, v) for w, v in zip(weights, value))  # noqa: B905
        expected.append(torch.stack([w * v @ capacity.inverse() @ v for w, v in zip(weights, value)]))  # noqa: B905
    scores = Cap(tau=tau, normalize=normalize)(layer, None, "sum").double()
    assert (scores[:, :4] == 0).all()
    torch.testing.assert_close(scores[:, 4:], torch.stack(expected), rtol=1e-4 if size == 1 else 5e-3, atol=1e-7)
    assert (Cap().refine(scores[:2].float(), layer)[:, :4] == scores[:2].max()).all()


def test_a_direction_that_many_values_have_is_worth_less() -> None:
    """With equal weights, of 30 values along one axis and one along another the single one ranks first."""
    values = torch.zeros(2, 35, 10)
    values[..., 0] = 3.0
    values[:, 20] = torch.eye(10)[5] * 3
    layer = replace(random_layer(35), values=values.flatten(0, 1))
    assert (Cap(tau=0)(layer, None, "sum").argmax(dim=1) == 20).all()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match=r"score.tau=-1: a factor of 0 or more"):
        Cap(tau=-1)
    with pytest.raises(UserError, match="score cap leaves out the first 4 tokens, but the prompt has 3"):
        Cap()(random_layer(3), None, "sum")
