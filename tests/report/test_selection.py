"""What a selection selects: values as they are typed."""

import pyarrow as pa
import pytest

from kvbench.report.selection import as_typed, check_where, conditions, select, without_full_cache
from kvbench.support.errors import NothingSelected, UserError

CELLS = {
    "a": {"task": {"chat": True}, "policy": {"name": "snapkv"}},
    "b": {"task": {"chat": False}, "policy": {"name": "snapkv"}, "reader": {"name": "quest"}},
    "c": {"task": {}, "policy": {"name": "snapkv", "page": 16, "apply": {"kind": "d2o"}}},
}
ROWS = pa.table({"cell": [*CELLS], "budget": ["0.1", "0.10", "1"]})


@pytest.mark.parametrize(
    ("where", "cells"),
    [
        ({"task.chat": ("true",)}, "a"),
        ({"task.chat": ("False",)}, "b"),
        ({"task.chat": ("null",)}, "c"),
        ({"budget": ("0.1",)}, "ab"),
        ({"budget": ("1",)}, "c"),
        ({"reader": ("quest",)}, "b"),
        ({"reader": ("dense",)}, "ac"),
        ({"policy.apply": ("drop",)}, "ab"),
        ({"policy.apply": ("d2o",)}, "c"),
        ({"policy.page": ("1",)}, "ab"),
        ({"policy.page": ("16",)}, "c"),
    ],
    ids=str,
)
def test_values_are_those_of_the_command_line(where: dict[str, tuple[str, ...]], cells: str) -> None:
    """As they are printed, and as Python writes them; defaults too, which the description of a cell does not name."""
    assert select(ROWS, where, CELLS.get, print)["cell"].to_pylist() == list(cells)


def test_values_are_printed_as_they_are_typed() -> None:
    assert [*map(as_typed, (True, False, None, 0.1))] == ["true", "false", "null", "0.1"]
    with pytest.raises(NothingSelected, match=r"no row has task\.chat=yes; the rows have false, null, true"):
        select(ROWS, {"task.chat": ("yes",)}, CELLS.get, print)


@pytest.mark.parametrize("where", [{"policy": ("snapkv",)}, {"policy": ("full",), "reader": ("quest",)}], ids=str)
def test_a_policy_without_its_settings_is_shown_how_to_name_it(where: dict[str, tuple[str, ...]]) -> None:
    rows = pa.table({"cell": ["a", "b", "c"], "policy": ["full", "full reader=quest", "snapkv pool.size=15"]})
    cells = {"a": {"policy": {"name": "full"}}, "b": {"policy": {"name": "full"}, "reader": {"name": "quest"}}}
    name = where["policy"][0]
    with pytest.raises(NothingSelected, match=rf"; policy={name} is that label alone, policy\.name={name} takes it"):
        select(rows, where, cells.get, print)
    with pytest.raises(NothingSelected, match=r"the rows have [^;]*$"):
        select(rows, {"policy": ("h2o",)}, cells.get, print)


@pytest.mark.parametrize(
    ("where", "condition"),
    [
        ({}, ""),
        ({"task": ("ruler/fwe",)}, ""),
        ({"budget": ("0.4", "1.0")}, ""),
        ({"policy": ("snapkv",), "budget": ("0.4",)}, ""),
        ({"policy.window": ("16",), "budget": ("0.4",)}, ""),
        ({"budget": ("0.4",)}, "budget=1.0"),
        ({"policy": ("full", "snapkv"), "score": ("attn",), "budget": ("0.*",)}, "score=null budget=1.0"),
    ],
    ids=str,
)
def test_a_selection_says_what_would_select_the_full_cache_too(
    where: dict[str, tuple[str, ...]], condition: str
) -> None:
    assert without_full_cache(where) == condition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy=snapkv,policy=h2o", r"names 'policy' twice; list its values: policy=a,b"),
        ("policy=", "cannot read selection 'policy='"),
        ("snapkv,policy=h2o", "cannot read selection 'snapkv,policy=h2o'"),
        ("policy=snapkv,,h2o", "cannot read selection"),
        ("polici=snapkv", "rows have no column 'polici'"),
    ],
)
def test_what_is_no_selection_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        conditions(text)


def test_an_empty_value_is_refused() -> None:
    with pytest.raises(UserError, match=r"policy= has no value; name one or more"):
        check_where({"policy": ("",)})
