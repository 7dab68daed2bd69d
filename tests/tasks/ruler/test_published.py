"""PublishedRuler RULER rows: read as they are, in their order, and refused where they are not what they should be."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from kvbench.tasks.ruler.published import PublishedRuler
from kvbench.tasks.task import InvalidSample
from tests.tasks.ruler.conftest import count_words

ROWS = [
    {
        "context": f"Text {number}.\n",
        "question": "What is it? ",
        "answer_prefix": "It is",
        "answer": [f"a{number}", "b"],
        "task": name,
        "max_new_tokens": 128,
    }
    for number, name in enumerate(("niah_single_1", "qa_1", "niah_single_1", "vt", "niah_single_1"))
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ruler" / "simonjegou" / "4096").mkdir(parents=True)
    write(tmp_path, ROWS)
    return tmp_path


def write(root: Path, rows: list[dict]) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), root / "ruler" / "simonjegou" / "4096" / "test-00000.parquet")


def make(root: Path, member: str = "niah_single_1", **fields) -> PublishedRuler:
    given = {"name": f"ruler_published/{member}", "member": member, "max_new_tokens": 128, "root": str(root)}
    return PublishedRuler(**(given | fields))


def test_sample_i_is_row_i_of_its_task(root: Path):
    samples = list(make(root).generate(count_words, [2, 0]))
    assert [(sample.id, sample.context, sample.references) for sample in samples] == [
        (0, "Text 0.\n", ("a0", "b")),
        (2, "Text 4.\n", ("a4", "b")),
    ]
    assert samples[0].prompt == "Text 0.\nWhat is it? \nIt is"  # the line break of kvpress without a template


def test_more_rows_than_published_are_refused(root: Path):
    with pytest.raises(ValueError, match=r"task\.samples=4: ruler_published/niah_single_1 has 3 samples, none is 3"):
        list(make(root, samples=4).generate(count_words, range(4)))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"answer": []}, "its answer is []: a list of at least one text"),
        ({"context": None}, "its context is null, not a text"),
        ({"context": ""}, "its context is empty"),
    ],
)
def test_a_broken_row_is_unreadable_and_the_others_are_not(root: Path, broken: dict, message: str):
    write(root, [ROWS[0], ROWS[3] | broken, ROWS[3]])
    spoilt, good = make(root, "vt").generate(count_words, [0, 1])
    assert isinstance(spoilt, InvalidSample) and good.context == "Text 3.\n"
    assert spoilt.error == f"ruler/simonjegou/4096/test-00000.parquet: row 0 of vt: {message}"


def test_rows_of_no_task_are_refused(root: Path):
    write(root, [*ROWS[:3], ROWS[3] | {"task": None}])
    with pytest.raises(ValueError, match="ruler_published/vt has 0 samples"):
        list(make(root, "vt").generate(count_words, [0]))


def test_a_file_of_another_kind_is_refused(root: Path):
    write(root, [{"prompt": "a"}])
    with pytest.raises(ValueError, match="is not a file of simonjegou/ruler"):
        list(make(root).generate(count_words, [0]))
    (root / "ruler" / "simonjegou" / "4096" / "test-00000.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="is not a file of simonjegou/ruler"):
        list(make(root).generate(count_words, [0]))


def test_an_absent_length_is_an_error_with_the_command(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="kvbench data pull ruler"):
        list(make(tmp_path).generate(count_words, [0]))
    with pytest.raises(ValueError, match=r"task\.context_length=2048 .*published are 4096, 8192, 16384"):
        make(tmp_path, context_length=2048)
