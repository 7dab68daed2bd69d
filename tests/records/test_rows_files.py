import json
import zlib
from pathlib import Path

import pytest

from kvbench.records import COLUMNS, Recorder, ResultsFolder, read_rows
from kvbench.records.environment import content_hash
from kvbench.records.row import with_checksum
from kvbench.records.rows_files import choose_record
from kvbench.report.rows import load, load_table
from kvbench.support.errors import MissingFile


def write(folder: Path, name: str, text: str | bytes) -> Path:
    rows = folder / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    (rows / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows / name


def test_a_file_cut_anywhere_gives_its_whole_lines_and_at_most_one_warning(tmp_path: Path, make) -> None:
    written = [make(sample=i, prediction=f"answer {i}\nsecond line", value=1.0) for i in range(2)]
    whole = "".join(row.to_json() + "\n" for row in written).encode()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    places = {*range(0, len(whole), 29), *(end + near for end in (0, *ends) for near in range(-3, 4))}
    for cut in sorted(places & {*range(len(whole) + 1)}):
        write(tmp_path, "a.jsonl", whole[:cut])
        warnings: list[str] = []
        complete = sum(end <= cut for end in ends)
        assert read_rows(tmp_path, warnings.append) == written[:complete]
        assert len(warnings) == (cut not in (0, *ends)), cut
        assert all(f"a.jsonl:{complete + 1}: torn last line" in warning for warning in warnings)


@pytest.mark.parametrize("rubbish", ["", "{}", "rubbish", '{"cell": NaN}'])
def test_a_broken_line_within_is_left_out_and_only_the_last_line_is_torn(tmp_path: Path, make, rubbish: str) -> None:
    path = write(tmp_path, "a.jsonl", f"{make().to_json()}\n{rubbish}\n{make(sample=1).to_json()}")
    warnings: list[str] = []
    assert read_rows(tmp_path, warnings.append) == [make()]
    torn, damaged = warnings
    assert torn.startswith(f"{path}:3: torn last line") and damaged.startswith(f"{path}:2: damaged row, not counted: ")


def test_first_row_without_error_wins_else_the_last_error(tmp_path: Path, make) -> None:
    first = [make(sample=0, error="a"), make(sample=1, error="a"), make(sample=2, value=1.0), make(sample=3, value=1.0)]
    second = [make(sample=0, error="b"), *(make(sample=n, value=0.0) for n in (1, 2)), make(sample=3, error="b")]
    write(tmp_path, "2.jsonl", "".join(row.to_json() + "\n" for row in second))
    write(tmp_path, "1.jsonl", "".join(row.to_json() + "\n" for row in first))
    assert read_rows(tmp_path) == [first[2], first[3], second[0], second[1]]


@pytest.mark.parametrize(
    ("records", "counts"),
    [
        ([(False, "old", None), (False, "new", None)], 1),
        ([(False, "old", None), (True, "new", None)], 1),
        ([(True, "new", None), (False, "old", None), (False, "new", None), (False, "new", None)], 2),
        ([(False, "new", 2), (False, "old", None), (False, "old", 1)], 0),
        ([(True, "new", 1), (False, "old", 0), (True, "new", 1)], 2),
    ],
    ids=["newer code", "newer code failed", "first good", "replaces most", "replaces most and failed"],
)
def test_of_several_records_one_of_the_newest_code_counts_and_first_one_that_replaces_most(records, counts) -> None:
    assert choose_record(records) == counts


def test_an_integer_of_more_than_64_bits_is_a_damaged_row_and_blocks_no_report(tmp_path: Path, make) -> None:
    line, number = make(seed=5).to_json().rpartition(', "checksum"')[0], 2**64 - 1
    line = with_checksum(line.replace('"seed": 5', f'"seed": {number}') + "}")
    path = write(tmp_path, "a.jsonl", f"{line}\n{make(sample=1, seed=7).to_json()}\n")
    for read in (read_rows, lambda folder, warn: load_table(folder, COLUMNS, warn)["seed"].to_pylist()):
        warnings: list[str] = []
        assert [getattr(row, "seed", row) for row in read(tmp_path, warnings.append)] == [7]
        assert warnings[0].startswith(f"{path}:1: damaged row, not counted: row column 'seed' is {number}; an integer")
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match=r"row column .seed. is -?922337203685477580[89]; an integer has 64 bits"):
            make(seed=seed)
    assert make(seed=2**63 - 1).seed == 2**63 - 1


def test_rows_that_were_converted_for_windows_say_so(tmp_path: Path, make) -> None:
    path = write(tmp_path, "a.jsonl", f"{make().to_json()}\r\n{make(sample=1).to_json()}\n")
    warnings: list[str] = []
    assert [row.sample for row in read_rows(tmp_path, warnings.append)] == [1]
    assert warnings[0].startswith(f"{path}:1: damaged row") and "checksum, converted for Windows" in warnings[0]


@pytest.mark.parametrize("schema", ['"schema": 1, ', ""])
def test_a_row_without_a_checksum_is_a_damaged_row(tmp_path: Path, make, schema: str) -> None:
    line = make(value=0.5).to_json().rpartition(', "checksum"')[0].replace('"schema": 1, ', schema) + "}"
    path = write(tmp_path, "a.jsonl", f"{line}\n{make(sample=1, value=1.0).to_json()}\n")
    for read in (read_rows, lambda folder, warn: load_table(folder, warn=warn)["sample"].to_pylist()):
        warnings: list[str] = []
        assert [getattr(row, "sample", row) for row in read(tmp_path, warnings.append)] == [1]
        assert warnings[0].startswith(f"{path}:1: damaged row, not counted: its bytes do not match its checksum")


def test_damaged_rows_are_missing_and_named_by_file_and_line(tmp_path: Path, make) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=i, value=1.0) for i in range(6)])
    assert recorder.path is not None
    lines = recorder.path.read_text().splitlines(keepends=True)
    lines[1], lines[4] = (line.replace('"value": 1.0', '"value": 0.0') for line in (lines[1], lines[4]))
    recorder.path.write_text("".join(lines))
    for read in (read_rows, lambda folder, warn: load_table(folder, warn=warn)["sample"].to_pylist()):
        warnings: list[str] = []
        rows = read(tmp_path, warnings.append)
        assert [getattr(row, "sample", row) for row in rows] == [0, 2, 3, 5]
        assert warnings == [
            f"{recorder.path}:2: damaged row, not counted, nor line 5: its bytes do not match its checksum; "
            "the same `kvbench run` computes it again"
        ]


@pytest.mark.parametrize("damage", ["cut", "exchanged", "doubled", "spliced", "none", "killed"])
def test_a_file_is_compared_with_what_its_writer_ended_it_with(tmp_path: Path, make, damage: str) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=0, value=1.0), make(sample=1, value=1.0)])
        recorder.append([make(sample=2, value=1.0)])
    assert recorder.path is not None
    if damage == "killed":
        (tmp_path / "finished" / f"{recorder.path.stem}.json").unlink()
    first, second, third = recorder.path.read_text().splitlines(keepends=True)
    other = make(sample=1, value=0.0).to_json() + "\n"
    lost = "it has {} lines, but its writer recorded 3; the same `kvbench run` computes lost rows again"
    more = "it has 4 lines, but its writer recorded 3"
    differs = "its lines are complete, but differ from the checksum that its writer recorded"
    lines, said = {
        "cut": ([first, second], [lost.format(2)]),
        "exchanged": ([second, first, third], [differs]),
        "doubled": ([first, second, third, third], [more]),
        "spliced": ([first, other, third], [differs]),
        "none": ([first, second, third], []),
        "killed": ([first, second], []),
    }[damage]
    recorder.path.write_text("".join(lines))
    warnings: list[str] = []
    read_rows(tmp_path, warnings.append)
    assert warnings == [f"{recorder.path}: {text}" for text in said]


def test_only_a_file_that_is_not_as_it_ended_is_checked_line_by_line(tmp_path: Path, make) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=i, value=1.0) for i in range(3)])
    assert recorder.path is not None
    path, finished = recorder.path, tmp_path / "finished" / f"{recorder.path.stem}.json"
    assert json.loads(finished.read_text()) == {
        "rows": 3,
        "crc32": f"{zlib.crc32(path.read_bytes()):08x}",
        "sidecars": {},
    }
    path.write_text(path.read_text().replace('"checksum": "', '"checksum": "0'))  # no line has its own any more
    for crc32, rows in ((f"{zlib.crc32(path.read_bytes()):08x}", 3), ("00000000", 0)):
        finished.write_text(json.dumps({"rows": 3, "crc32": crc32}))
        warnings: list[str] = []
        if rows:
            assert load_table(tmp_path, warn=warnings.append).num_rows == rows and not warnings
        else:
            with pytest.raises(MissingFile):
                load_table(tmp_path, warn=warnings.append)
            assert "damaged row, not counted, nor lines 2, 3" in warnings[-1]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 3', '{"rows": "3"}', '{"rows": 3, "crc32": 5}', "\x00\xff"])
def test_a_damaged_count_is_named_and_the_lines_are_checked(tmp_path: Path, make, text: str) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.append([make(sample=i, value=1.0) for i in range(3)])
    assert recorder.path is not None
    (tmp_path / "finished" / f"{recorder.path.stem}.json").write_text(text, "latin-1")
    recorder.path.write_text(recorder.path.read_text().replace('"value": 1.0', '"value": 0.0', 1))
    warnings: list[str] = []
    assert load_table(tmp_path, warn=warnings.append)["sample"].to_pylist() == [1, 2]
    assert len(warnings) == 2 and "remove it" in warnings[0] and "damaged row" in warnings[1]


def test_words_are_those_of_the_cell(tmp_path: Path, make) -> None:
    description = {
        "task": {"name": "ruler/niah_single_1", "version": "2026", "context_length": 512},
        "policy": {"name": "snapkv", "variant": "exact", "layout": "kv_heads"},
        "score": {"name": "attn"},
        "budget": "0.1",
        "seed": 0,
    }
    cell = content_hash(description)[:16]
    ResultsFolder(tmp_path).write_cell(cell, description)
    spliced = [
        *({"policy": "h2o_obcache"}, {"score": "tova_obcache"}, {"budget": "0.2"}, {"task": "ruler/vt"}, {"seed": 1}),
        *({"layout": "query_heads"}, {"variant": "paper"}, {"task_version": "2025"}, {"context_length": 1024}),
    ]
    spliced += [{"policy": "h2o_obcache"}, {"policy": "h2o_obcache"}]
    whole = [make(cell, sample) for sample in range(3)]
    whole += [make(cell, 3, policy="snapkv window=32", score="attn rows=4"), make(cell, 4, score=None), make("ab", 0)]
    rows = [*(make(cell, 9 + i, **columns) for i, columns in enumerate(spliced)), *whole]
    write(tmp_path, "a.jsonl", "".join(row.to_json() + "\n" for row in rows))
    warnings: list[str] = []
    assert read_rows(tmp_path, warnings.append) == whole
    assert load(tmp_path, lambda text: None) == whole
    assert len(warnings) == len(spliced) - 2
    assert (
        "a.jsonl:1: damaged row, not counted, nor lines 10, 11: its policy is 'h2o_obcache', but its cell has 'snapkv'"
        in warnings[0]
    )
