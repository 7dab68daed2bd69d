import json
import math
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.records import COLUMNS, MEASURED, REQUESTED, SCHEMA, WHERE, Row
from kvbench.records.row import LARGEST_NUMBER, NewerSchema, with_checksum

NUMBERS = st.floats(-LARGEST_NUMBER, LARGEST_NUMBER)
WHOLE = st.integers(-(2**53), 2**53)
TEXT = st.text(st.characters())  # half surrogate pairs included: models produce them
STRATEGIES = {str: TEXT, int: WHOLE, str | None: st.none() | TEXT, int | None: st.none() | WHOLE}


def unchecked(row: Row) -> str:
    """The line of a row without its checksum."""
    data = json.loads(row.to_json())
    del data["checksum"]
    return json.dumps(data)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    columns = {name: draw(STRATEGIES.get(kind, st.none() | NUMBERS)) for name, kind in Row.__annotations__.items()}
    columns["better"] = draw(st.sampled_from((None, "higher", "lower")))
    columns["kept_fraction"] = draw(st.none() | st.floats(0, 1))
    if columns["error"] is not None:
        columns["value"] = None
    return Row(**columns)


@given(rows())
def test_a_row_survives_its_line(row: Row) -> None:
    line = row.to_json()
    assert "\n" not in line and line.isascii()
    assert Row.from_json(line) == row
    assert Row.from_json(line.encode()).to_json() == line


def test_column_names_and_order_are_the_published_ones() -> None:
    requested = (
        "cell sample model task task_version context_length policy score budget variant protocol layout schedule seed"
    )
    measured = (
        "prompt_tokens kept_tokens kept_fraction local_layers cache_bytes full_cache_bytes allocated_bytes "
        "peak_bytes read_bytes index_bytes store weights prefill_seconds evict_seconds decode_seconds "
        "first_token_seconds production_seconds new_tokens reasoning_tokens reasoning ended decode_evictions "
        "prediction metric unit better value error prompt_sha256 context_sha256 question_number border_tokens "
        "recurrent_layers recurrent_bytes output_sha256 kept_sha256 top2_margin"
    )
    assert tuple(requested.split()) == REQUESTED
    assert tuple(measured.split()) == MEASURED
    assert WHERE == ("environment", "code", "replaces")
    assert COLUMNS == REQUESTED + MEASURED + WHERE


@pytest.mark.parametrize("mark", [SCHEMA + 1, 9, 0, None, "1", True, 1.0])
def test_another_schema_is_refused_by_name(make, mark: object) -> None:
    line = with_checksum(json.dumps(json.loads(unchecked(make())) | {"schema": mark}))
    with pytest.raises(ValueError, match=f"^schema {mark!r}; this kvbench reads schema {SCHEMA}: ") as refusal:
        Row.from_json(line)
    is_newer = type(mark) is int and mark > SCHEMA
    assert isinstance(refusal.value, NewerSchema) == is_newer


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_is_finite_or_missing(make, number: float) -> None:
    with pytest.raises(ValueError, match=r"'value' is (nan|inf|-inf); a number must be finite"):
        make(value=number)
    line = unchecked(make(value=0.5)).replace('"value": 0.5', f'"value": {json.dumps(number)}')
    with pytest.raises(ValueError, match="is not JSON"):
        Row.from_json(with_checksum(line))


@pytest.mark.parametrize("line", ["", "[]", "3", "{", '{"cell": "ab"}', '{"cell": "ab", "sample": "0"}', b"\xff\xfe"])
def test_what_is_no_row_is_refused(line: str | bytes) -> None:
    with pytest.raises(ValueError):
        Row.from_json(line)


def test_the_outcome_leaves_out_seconds_and_place_only(make) -> None:
    seconds = [name for name in COLUMNS if name.endswith("_seconds")]
    here = make(value=1.0, **dict.fromkeys(seconds, 1.0), environment="a")
    there = make(value=1.0, **dict.fromkeys(seconds, 2.0), environment="b")
    assert here != there and here.outcome() == there.outcome()
    for column, value in {"value": 0.0, "prediction": "no", "peak_bytes": 1, "top2_margin": 0.5, "sample": 1}.items():
        assert make(**{column: value}).outcome() != make(value=1.0).outcome(), column
    assert len(here.outcome()) == len(COLUMNS) - len(seconds) - len(WHERE)


def test_every_flipped_bit_and_every_cut_of_a_line_is_refused(make) -> None:
    line = make(value=1.0, prediction="caf\u00e9 17").to_json().encode()
    for place in range(len(line)):
        for bit in range(8):
            with pytest.raises(ValueError) as refusal:
                Row.from_json(line[:place] + bytes([line[place] ^ 1 << bit]) + line[place + 1 :])
            assert not isinstance(refusal.value, NewerSchema), "a schema of 9 is a damaged one here"
        with pytest.raises(ValueError):
            Row.from_json(line[:place])


def test_the_checksum_is_the_crc_of_the_bytes_before(make) -> None:
    text, _, checksum = make(value=1.0).to_json().rpartition(', "checksum": ')
    assert checksum == f'"{zlib.crc32(text.encode()):08x}"' + "}"
    line = unchecked(make(value=1.0)).replace('"value": 1.0', '"value": 1')
    assert Row.from_json(with_checksum(line)).to_json() == make(value=1.0).to_json(), "a number has one line"


def test_a_column_that_stands_twice_is_refused_with_a_right_checksum_too(make) -> None:
    line = unchecked(make(value=1.0))
    with pytest.raises(ValueError, match="column 'value' twice"):
        Row.from_json(with_checksum(line.replace('"value": 1.0', '"value": 1.0, "value": 0.0')))


@pytest.mark.parametrize("value", [1.25, -0.5, 5.0, 1e99])
def test_a_share_is_in_0_to_1(make, value: float) -> None:
    assert make(metric="edits", unit="share", value=1.0).value == 1.0
    with pytest.raises(ValueError, match=re.escape(f"'value' is {value!r}; edits is a share")):
        make(metric="edits", unit="share", value=value)
    with pytest.raises(ValueError, match=re.escape(f"'kept_fraction' is {value!r}; it is a share")):
        make(kept_fraction=value)
    for unit in ("seconds", "nats per token", None):
        assert make(metric="edits", unit=unit, value=value).value == value
    with pytest.raises(ValueError, match="'better' is 'more'; allowed: higher, lower"):
        make(metric="edits", better="more", value=1.0)


@pytest.mark.parametrize("column", ["value", "kept_tokens", "prefill_seconds"])
def test_no_number_is_larger_than_its_square_allows(make, column: str) -> None:
    assert getattr(make(**{column: LARGEST_NUMBER}), column) == LARGEST_NUMBER
    for number in (1e300, -1e300):
        with pytest.raises(ValueError, match=rf"'{column}' is {re.escape(repr(number))}; no number is larger"):
            make(**{column: number})
