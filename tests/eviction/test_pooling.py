"""Pooling and group reduction, and that their order matters where it should."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
import torch

from kvbench.eviction import pooling
from kvbench.eviction.pooling import Pool, pool_and_reduce, reduce_group


def test_max_pool_sees_nothing_beyond_the_ends() -> None:
    scores = torch.tensor([[-5.0, -1.0, -3.0, -4.0]])
    assert Pool("max", 3)(scores).tolist() == [[-1.0, -1.0, -1.0, -3.0]]


def test_average_pool_counts_zeros_beyond_the_ends() -> None:
    scores = torch.tensor([[3.0, 6.0, 9.0, 3.0]])
    assert Pool("avg", 3)(scores).tolist() == [[3.0, 6.0, 6.0, 4.0]]


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_keeps_the_number_of_columns(kind: str) -> None:
    for columns in (0, 1, 2, 9):
        assert Pool(kind, 7)(torch.rand(2, columns)).shape == (2, columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 2, 8])
def test_a_pool_needs_a_middle(size: int) -> None:
    with pytest.raises(ValueError, match=rf"pool.size={size} has no middle: use an odd number"):
        Pool("max", size)


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
    ],
)
def test_a_pool_that_is_not_legal_is_refused(unchecked: ModuleType, kind: object, size: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        unchecked.Pool(kind, size)


@pytest.mark.parametrize("order", [("pool",), ("group", "sum")])
def test_an_order_that_is_not_legal_is_refused(unchecked: ModuleType, order: object) -> None:
    says = f"order={order} is not allowed; allowed: ('group', 'pool'), ('pool', 'group')"
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        unchecked.pool_and_reduce(torch.rand(6, 4), None, "mean", order, 2)


@pytest.mark.parametrize("kv_heads", [2, 6])
def test_an_unknown_reduction_is_refused_even_where_nothing_is_merged(kv_heads: int) -> None:
    with pytest.raises(ValueError, match="group=median is not allowed; allowed: mean, max, sum, none, layer_mean"):
        reduce_group(torch.rand(6, 4), "median", kv_heads)


def test_no_step_comes_twice() -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        pool_and_reduce(torch.rand(6, 4), None, "mean", ("pool", "pool"), 2)


def test_query_heads_of_a_group_are_neighbours() -> None:
    """Query head h reads KV head h // group."""
    scores = torch.arange(6.0)[:, None]
    assert reduce_group(scores, "mean", 2).flatten().tolist() == [1.0, 4.0]
    assert reduce_group(scores, "max", 2).flatten().tolist() == [2.0, 5.0]
    assert reduce_group(scores, "sum", 3).flatten().tolist() == [1.0, 5.0, 9.0]
    assert reduce_group(scores, "none", 2).shape == (6, 1)


def test_average_and_mean_commute_and_max_does_not() -> None:
    scores = torch.rand(6, 30, generator=torch.Generator().manual_seed(0))
    for pool, equal in ((Pool("avg", 5), True), (Pool("max", 7), False)):
        first = pool_and_reduce(scores, pool, "mean", ("pool", "group"), 2)
        second = pool_and_reduce(scores, pool, "mean", ("group", "pool"), 2)
        assert torch.allclose(first, second, atol=1e-6) == equal
