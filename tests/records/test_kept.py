"""Kept sets on disk: what was packed comes back, a row has its own, a torn end is dropped."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.records import KeptSets, Recorder, read_kept
from kvbench.report.beside import lines_beside


def packed(mask: list[bool]) -> bytes:
    """As `numpy.packbits` does it."""
    return np.packbits(np.array(mask)).tobytes()


def kept_sets(*masks: list[bool], cell: str = "ab", sample: int = 0, detail: bool = True) -> KeptSets:
    """One head in each of the layers 1, 3, 5, ..."""
    layers = tuple(range(1, 2 * len(masks), 2))
    lengths = tuple((sum(mask),) for mask in masks)
    return KeptSets(
        cell, sample, len(masks[0]), layers, lengths, tuple((packed(m),) for m in masks) if detail else None
    )


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.booleans())
def test_a_line_says_which_positions_were_kept(mask: list[bool], detail: bool) -> None:
    kept = kept_sets(mask, mask[::-1], detail=detail)
    assert KeptSets.from_json(kept.to_json()) == kept and "\n" not in kept.to_json()
    if detail:
        assert kept.positions(1, 0) == [place for place, stays in enumerate(mask) if stays]
        assert len(kept.positions(3, 0)) == kept.lengths[1][0]
        assert kept.sha256 == hashlib.sha256(packed(mask) + packed(mask[::-1])).hexdigest()
        with pytest.raises(ValueError, match=r"layer 2 of cell ab was not evicted from; layers: \[1, 3\]"):
            kept.positions(2, 0)
    else:
        assert kept.sha256 is None
        with pytest.raises(ValueError, match=r"run with results\.kept=positions"):
            kept.positions(1, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"cell": []},
        {"sample": True},
        {"seen": 16},
        {"seen": -8},
        {"layers": []},
        {"layers": [0, 1]},
        {"lengths": [[1]]},
        {"lengths": []},
        {"kept": [["//8="]]},
        {"kept": {}},
        {"kept": [["?"]]},
    ],
    ids=str,
)
def test_a_line_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    line = json.loads(kept_sets([True, False, True]).to_json())
    with pytest.raises(ValueError):
        KeptSets.from_json(json.dumps(line | changes))


def test_files_lie_beside_the_rows(tmp_path: Path, make) -> None:
    first, second = kept_sets([True, False]), kept_sets([True, True], sample=1)
    without_row = kept_sets([True, False], sample=2)
    with Recorder(tmp_path) as recorder:
        recorder.append([make("ab", 0)], {"kept": [first.to_json()]})
        recorder.append([make("ab", 1)], {"kept": [second.to_json(), without_row.to_json()]})
        assert recorder.path is not None
        file = tmp_path / "kept" / recorder.path.name
    assert read_kept(tmp_path) == {("ab", 0): first, ("ab", 1): second}
    with file.open("a") as torn:
        torn.write('{"cell": "a')
    warnings: list[str] = []
    assert len(read_kept(tmp_path, warnings.append)) == 2
    assert "its lines are not those that its writer ended it with" in warnings[0]
    assert "jsonl:4: torn last line dropped" in warnings[1]
    file.write_text("rubbish\n" + first.to_json() + "\n")
    with pytest.raises(ValueError, match=r"jsonl:1: not a line of kept sets"):
        read_kept(tmp_path, warnings.append)
    assert read_kept(tmp_path / "nowhere") == {}


READERS = (read_kept, lambda folder, warn: lines_beside(folder, KeptSets, warn))


def test_a_line_without_its_checksum_is_refused(tmp_path: Path, make) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.append([make("ab", 0)], {"kept": [kept_sets([True, False]).to_json()]})
    (path,) = (tmp_path / "kept").iterdir()
    content, mark, end = path.read_text().rpartition(', "checksum": "')
    for text in (f"{content}{mark}0{end}", f"{content}}}\n"):
        path.write_text(text)
        for read in READERS:
            with pytest.raises(ValueError, match="jsonl:1: not a line of kept sets: its bytes do not match"):
                read(tmp_path, lambda text: None)


def test_masks_that_are_not_those_of_the_row_are_left_out(tmp_path: Path, make) -> None:
    whole, other = kept_sets([True, False, True]), kept_sets([True, True, False])
    with Recorder(tmp_path) as recorder:
        row = make(whole.cell, whole.sample, kept_sha256=whole.sha256)
        recorder.append([row], {"kept": [whole.to_json()]})
    assert read_kept(tmp_path) == {(row.cell, row.sample): whole}
    (path,) = (tmp_path / "kept").iterdir()
    path.write_text(other.to_json() + "\n")
    with pytest.warns(UserWarning, match="masks of cell ab, sample .* do not match its row: left out"):
        assert read_kept(tmp_path) == {}


def test_a_row_has_the_kept_set_of_its_own_file_in_every_reader(tmp_path: Path, make) -> None:
    """The row that counts is the first of two that did not fail: not the kept set that was written last."""
    first, second = kept_sets([True, False]), kept_sets([False, True])
    for kept in (first, second):
        with Recorder(tmp_path) as recorder:
            recorder.append([make("ab", 0, code="c0de00000000")], {"kept": [kept.to_json()]})
    assert read_kept(tmp_path) == lines_beside(tmp_path, KeptSets, pytest.fail) == {("ab", 0): first}
    assert recorder.path is not None
    with (tmp_path / "kept" / recorder.path.name).open("a") as file:
        file.write(first.to_json() + "\n")
    for read in READERS:
        with pytest.raises(ValueError, match="cell ab, sample 0 has two lines that differ"):
            read(tmp_path, lambda text: None)
