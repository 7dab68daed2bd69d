"""What no pooling and no group reduction can mean."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
import torch

from kvbench.eviction import pooling
from kvbench.eviction.pooling import Pool, reduce_group


def test_pooling_leaves_no_columns_as_they_are() -> None:
    assert Pool("max", 7)(torch.rand(2, 0)).shape == (2, 0)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module under another name: its annotations are not checked before a constructor sees its values."""
    spec = spec_from_file_location("unchecked", pooling.__file__)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "size", "says"),
    [
        ("Max", 3, "pool.kind=Max is not allowed; allowed: max, avg"),
        (["max"], 3, "pool.kind=['max'] is not allowed; allowed: max, avg"),
        ("max", 7.0, "pool.size=7.0 is not an integer, e.g. 7"),
        ("max", True, "pool.size=True is not an integer, e.g. 7"),
        ("max", 0, "pool.size=0 has no middle: use an odd number such as 1"),
        ("max", 8, "pool.size=8 has no middle: use an odd number such as 9"),
    ],
)
def test_a_pool_that_is_not_legal_is_refused(unchecked: ModuleType, kind: object, size: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        unchecked.Pool(kind, size)


@pytest.mark.parametrize("order", [("pool",), ("pool", "pool"), ("group", "sum")])
def test_an_order_that_is_not_legal_is_refused(unchecked: ModuleType, order: object) -> None:
    says = f"order={order} is not allowed; allowed: ('group', 'pool'), ('pool', 'group')"
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        unchecked.pool_and_reduce(torch.rand(6, 4), None, "mean", order, 2)


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_an_unknown_reduction_is_refused_even_where_nothing_is_merged(kv_heads: int) -> None:
    with pytest.raises(ValueError, match="group=median is not allowed; allowed: mean, max, sum, none, layer_mean"):
        reduce_group(torch.rand(6, 4), "median", kv_heads)
