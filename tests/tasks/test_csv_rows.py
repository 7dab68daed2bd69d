"""CSV files as prompts: whoever writes them, and whatever their cells hold, the texts that were written are read."""

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.extras.hub.hub import HubRows
from kvbench.support.errors import UserError

NAMES: tuple[str, ...] = ("context", "question", "answers")
PIECES = ['"', '""', "'", "\n", "\r\n", "\r", ",", ";", "\t", "\\", " ", "00713", "1.10", "1e3", "2024-03-05", "12:30"]
PIECES += ["true", "NA", "null", "nan", "[", "]", '["a", "b"]', "word", "é", "文", "😀"]
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
answers = texts.map(lambda text: text.strip() or "x").filter(lambda text: not text.startswith("["))
rows = st.fixed_dictionaries(
    {
        "context": texts.map(lambda text: f"{text}."),
        "question": texts,
        "answers": st.one_of(answers, st.lists(answers, min_size=1, max_size=3)),
    }
)


def by_csv(path: Path, table: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, NAMES)
        writer.writeheader()
        writer.writerows(table)


def by_pandas(path: Path, table: list[dict[str, str]]) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(table).to_csv(path, quoting=csv.QUOTE_NONNUMERIC)  # with its column of row numbers


def by_pyarrow(path: Path, table: list[dict[str, str]]) -> None:
    import pyarrow
    from pyarrow import csv as arrow_csv

    arrow_csv.write_csv(pyarrow.Table.from_pylist(table), path)


WRITERS = {"csv": by_csv, "pandas": by_pandas, "pyarrow": by_pyarrow}


def read(path: Path) -> list[Any]:
    task: Any = HubRows(path=str(path), samples=10**6)
    return [(item.context, item.question, item.references) for item in task.generate(len, range(task.samples))]


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=40, deadline=None)
@given(table=st.lists(rows, min_size=1, max_size=8))
def test_any_table_is_read_as_it_was_written(
    writer: str, tmp_path_factory: pytest.TempPathFactory, table: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("table") / "mine.csv"
    cells = [
        row | {"answers": row["answers"] if isinstance(row["answers"], str) else json.dumps(row["answers"])}
        for row in table
    ]
    WRITERS[writer](path, cells)
    assert read(path) == [
        (
            row["context"],
            "\n\n" + row["question"] if row["question"] else "",
            (row["answers"],) if isinstance(row["answers"], str) else tuple(row["answers"]),
        )
        for row in table
    ]


def test_long_contexts_with_line_ends_are_whole_rows_in_little_memory(tmp_path: Path) -> None:
    """Blocks of 1 MB that are cut at line ends would cut contexts."""
    text = "".join(f"item {j}, colour {j % 7}, {j}\n" for j in range(1200))
    by_csv(
        path := tmp_path / "long.csv",
        [{"context": f"{text}The code is {n}.", "question": "Which?", "answers": f"c{n}"} for n in range(60)],
    )
    tracemalloc.start()
    HubRows(path=str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * path.stat().st_size
    assert read(path) == [(f"{text}The code is {n}.", "\n\nWhich?", (f"c{n}",)) for n in range(60)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("context,answers\nA,\"['a', 'b']\"\n", "row 1: its answers are .* a list as Python writes it"),
        ("context,answers\nA,\"['a' 'b']\"\n", "a list as Python writes it"),
        ("context,answers\nA\n", r"different numbers of fields \(line 2\)"),
        ("context,answers\nA,b,c\n", r"different numbers of fields \(line 2\)"),
        ('context,answers\nA,"b\n', "it is not CSV: unexpected end of data"),
        ("context,answers,answers\nA,b,c\n", "its header has 'answers' twice"),
        ("context,answers\n", "it has no rows"),
        ("", "it has no rows"),
        ("context,questions,answers\nA,q,b\n", "unknown key 'questions': do you mean question"),
        ("context,answers\nA,\xff\n", "it is not UTF-8"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=rf"^task\.path=.*{message}"):
        HubRows(path=str(path))


def test_messages_are_json_and_a_mark_of_the_byte_order_is_no_text(tmp_path: Path) -> None:
    path, turns = tmp_path / "mine.csv", json.dumps([{"role": "user", "content": "Who?"}])
    path.write_text("\ufeffmessages,answers\n" + '"' + turns.replace('"', '""') + '",Anna\n', "utf-8")
    assert read(path) == [("", "Who?", ("Anna",))]
