from pathlib import Path

import pytest

from kvbench.records import COLUMNS, Recorder, ResultsFolder, done, read_rows
from kvbench.report.rows import load_table


def write(folder: Path, name: str, text: str | bytes) -> Path:
    rows = folder / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    (rows / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows / name


def test_a_file_cut_anywhere_gives_its_whole_lines_and_at_most_one_warning(tmp_path: Path, make) -> None:
    written = [make(sample=i, prediction=f"answer {i}\nsecond line", value=1.0) for i in range(2)]
    whole = "".join(row.to_json() + "\n" for row in written).encode()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        write(tmp_path, "a.jsonl", whole[:cut])
        warnings: list[str] = []
        complete = sum(end <= cut for end in ends)
        assert read_rows(tmp_path, warnings.append) == written[:complete]
        assert len(warnings) == (cut not in (0, *ends)), cut
        assert all(f"a.jsonl:{complete + 1}: torn last line" in warning for warning in warnings)


def test_a_last_line_of_rubbish_is_dropped_with_a_warning(tmp_path: Path, make) -> None:
    write(tmp_path, "a.jsonl", make().to_json() + '\n{"cell": "ab", "sam\n')
    with pytest.warns(UserWarning, match=r"a\.jsonl:2: torn last line dropped"):
        assert read_rows(tmp_path) == [make()]


@pytest.mark.parametrize("rubbish", ["", "{}", "rubbish", '{"cell": NaN}'])
def test_a_broken_line_elsewhere_is_an_error_that_names_it(tmp_path: Path, make, rubbish: str) -> None:
    path = write(tmp_path, "a.jsonl", f"{make().to_json()}\n{rubbish}\n{make(sample=1).to_json()}\n")
    with pytest.raises(ValueError, match="not a row") as error:
        read_rows(tmp_path)
    assert str(error.value).startswith(f"{path}:2: ")


def test_only_one_line_can_be_torn(tmp_path: Path, make) -> None:
    write(tmp_path, "a.jsonl", f"{make().to_json()}\nrubbish\n{make(sample=1).to_json()}")
    with pytest.raises(ValueError, match=r"a\.jsonl:2: not a row"):
        read_rows(tmp_path, lambda warning: None)


def test_a_folder_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "nothing") == []


def test_first_row_without_error_wins_else_the_last_error(tmp_path: Path, make) -> None:
    first = [make(sample=0, error="a"), make(sample=1, error="a"), make(sample=2, value=1.0), make(sample=3, value=1.0)]
    second = [
        make(sample=0, error="b"),
        make(sample=1, value=0.0),
        make(sample=2, value=0.0),
        make(sample=3, error="b"),
    ]
    write(tmp_path, "2.jsonl", "".join(row.to_json() + "\n" for row in second))
    write(tmp_path, "1.jsonl", "".join(row.to_json() + "\n" for row in first))
    assert read_rows(tmp_path) == [second[0], second[1], first[2], first[3]]


def test_cells_do_not_hide_each_other(tmp_path: Path, make) -> None:
    rows = [make("ab", 0), make("cd", 0)]
    with Recorder(tmp_path) as recorder:
        recorder.append(rows)
    assert read_rows(ResultsFolder(tmp_path)) == rows


def test_done_counts_errors_unless_they_are_retried(make) -> None:
    rows = [make("ab", 0, value=1.0), make("ab", 1, error="too long"), make("cd", 0, value=0.0)]
    assert done(rows) == {("ab", 0), ("ab", 1), ("cd", 0)}
    assert done(rows, retry_errors=True) == {("ab", 0), ("cd", 0)}


def test_an_integer_of_more_than_64_bits_is_missing_and_blocks_no_report(tmp_path: Path, make) -> None:
    line = make(seed=7).to_json().replace('"seed": 7', '"seed": 18446744073709551615')
    write(tmp_path, "a.jsonl", f"{line}\n{make(sample=1, seed=7).to_json()}\n")
    assert [row.seed for row in read_rows(tmp_path)] == [None, 7]
    table = load_table(tmp_path, COLUMNS)
    assert table["seed"].to_pylist() == [None, 7] and table["value"].to_pylist() == [make().value] * 2
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match=r"row column .seed. is -?922337203685477580[89]; an integer has 64 bits"):
            make(seed=seed)
    assert make(seed=2**63 - 1).seed == 2**63 - 1
