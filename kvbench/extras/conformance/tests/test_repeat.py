"""Cases whose rows repeat the context."""

from typing import Any

import numpy as np
import pytest
import torch

from kvbench.cache import attention
from kvbench.cache.attention import AttentionParams
from kvbench.extras.conformance.golden import Case, check, load
from tests.repository import GOLDEN

FOLDER = GOLDEN / "eviction"


@pytest.fixture
def case() -> Case:
    """Three chunks of a context behind a prefix of five tokens; all pairs of all layers compete."""
    return load(FOLDER / "repeat_global.npz")


@pytest.mark.parametrize("name", ["query_repeat", "key_repeat"])
def test_whatever_is_changed_fails(case: Case, name: str) -> None:
    assert check(case).problem is None
    case.arrays[name][1, 0, 60] *= -1
    assert check(case).problem is not None
    case.arrays[name][1, 0, 60] = np.nan
    assert check(case).problem == f"cannot be run: array {name} holds NaN or inf"
    case.arrays[name] = case.arrays[name][:, :, :-1]
    assert f"array {name} has shape" in str(check(case).problem)
    del case.arrays[name]
    assert check(case).problem == f"cannot be run: array {name} is missing"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"probe": "again"}, "is not supported; allowed with a probe: attn_max"),
        ({"width": 3}, "is not supported; allowed with a probe: attn_max"),
        ({"prefix": 4.5}, "prefix 4.5 is not allowed"),
        ({"prefix": 126}, "prefix 126 is not allowed"),
        ({"chunks": [[5, 55], [55, 105], [105, 126]]}, "chunks [[5, 55], [55, 105], [105, 126]] is not allowed"),
        ({"chunks": [[5, 55], [50, 105], [105, 125]]}, "is not allowed; allowed: pairs of integers"),
        ({"chunks": [[5, 5], [55, 105], [105, 125]]}, "is not allowed; allowed: pairs of integers"),
        ({"chunks": []}, "chunks [] is not allowed"),
        ({"rows": [[0, 56], [56, 112]]}, "3 chunks, but rows for 2"),
        ({"rows": [[0, 56], [56, 112], [112, 139]]}, "array query_repeat has shape"),
        ({"chunks": [[5, 55], [60, 105], [105, 125]]}, "not finite"),
    ],
    ids=str,
)
def test_a_repetition_that_is_none_fails(case: Case, changes: dict[str, Any], reason: str) -> None:
    case.spec["score"]["params"].update(changes)
    problem = check(case).problem
    assert problem is not None and problem.startswith("cannot be run: ") and reason in problem


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the softmax written out, with a cap and sinks."""
    queries, keys, sinks = torch.randn(6, 40, 10), torch.randn(2, 90, 10), torch.randn(6)
    rule = AttentionParams(0.7, softcap=3.0, sinks=sinks)
    logits = (queries @ keys.repeat_interleave(3, 0).mT * 0.7 / 3).tanh() * 3
    hidden = torch.arange(90) > torch.arange(50, 90)[:, None]
    masked = torch.cat((logits.masked_fill(hidden, -torch.inf), sinks[:, None, None].expand(6, 40, 1)), dim=-1)
    for block in (7, 512):
        monkeypatch.setattr(attention, "ROW_BLOCK", block)
        weights = attention.strongest(queries, keys, slice(4, 50), rule)
        assert torch.allclose(weights, masked.softmax(-1)[..., 4:50].amax(1), rtol=1e-5)
        unweighted = attention.strongest(queries, keys, slice(4, 50), rule, softmax=False)
        assert torch.allclose(unweighted, logits[..., 4:50].amax(1), rtol=1e-5)
