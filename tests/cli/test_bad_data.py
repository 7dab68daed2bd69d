"""Files of data with spoilt rows: an error row for each of them, the others go on, exit 4, and all of them count."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.cli.conftest import Command, rows_of
from tests.tasks.longbench.conftest import row as longbench_row

Case = tuple[bytes, str | None]


def lines_of(good: dict) -> list[Case]:
    """Lines of a file, and how the error of each begins after its place; None where a line is fine."""

    def encoded(**fields: object) -> bytes:
        return json.dumps(good | fields).encode()

    without = json.dumps({name: value for name, value in good.items() if name != "context"}).encode()
    return [
        (encoded(), None),
        (b'{"context": "cut', "not JSON: "),
        (b'{"context": "\xff\xfe"}', "not UTF-8: "),
        (b'{"context": "raw \x00"}', "not JSON: Invalid control character"),
        (b"[" * 10_000, "nested too deeply"),
        (without, "it has no context"),
        (encoded(context=""), "its context is empty"),
        (encoded(context=[1]), "its context is a list, not a text"),
        (encoded(context="{0} {} {context} {{ \x00 }"), None),
        (encoded(context="many words " * 20_000), None),
        (encoded(input=None), "its input is null, not a text"),
        (encoded(), None),
    ]


def longbench(root: Path) -> tuple[str, list[str | None]]:
    config = root / "longbench" / "config"
    config.mkdir(parents=True)
    (config / "dataset2prompt.json").write_text('{"qasper": "Read {context} then {input} so"}')
    (config / "dataset2maxlen.json").write_text('{"qasper": 4}')
    return "longbench/qasper", written(root / "longbench" / "qasper.jsonl", lines_of(longbench_row()))


def published(root: Path) -> tuple[str, list[str | None]]:
    file = root / "ruler" / "simonjegou" / "4096" / "test-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    good = {
        "context": "A {b} \x00 text. ",
        "question": "What? ",
        "answer_prefix": "It is",
        "answer": ["a"],
        "task": "vt",
    }
    bad: list[tuple[dict, str | None]] = [
        ({}, None),
        ({"context": None}, "its context is null, not a text"),
        ({"context": " "}, "its context is empty"),
        ({"answer": []}, "its answer is []: a list of at least one text"),
        ({}, None),
    ]
    parquet.write_table(pa.Table.from_pylist([good | fields for fields, _ in bad]), file)
    place = file.relative_to(root).as_posix()
    errors = [error and f"{place}: row {number} of vt: {error}" for number, (_, error) in enumerate(bad)]
    return "ruler_published/vt", errors


def written(file: Path, cases: list[Case]) -> list[str | None]:
    """Write lines with a blank one before each; the errors with their places."""
    file.write_bytes(b"".join(b"\n" + line + b"\n" for line, _ in cases))
    name = file.relative_to(file.parents[1]).as_posix()
    return [error and f"{name}:{2 * number}: {error}" for number, (_, error) in enumerate(cases, start=1)]


def reads_more(model: Path, folder: Path) -> Path:
    """The same model with positions for the published length."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


@pytest.mark.parametrize("family", [longbench, published], ids=lambda family: family.__name__)
def test_spoilt_rows_are_rows_with_an_error(
    family: Callable[[Path], tuple[str, list[str | None]]], kvbench: Command, tiny_model: Path, tmp_path: Path
):
    task, errors = family(tmp_path)
    model = reads_more(tiny_model, tmp_path / "model") if task.startswith("ruler_published") else tiny_model
    settings = ["model=hf", f"model.path={model}", "model.dtype=float32", "results.dir=out"]
    settings += [f"data.root={tmp_path}", "data.verify=false"]
    settings += [f"task={task}", f"task.samples={len(errors)}", "policy=full,streaming_llm", "budget=0.5"]
    settings += ["task.max_new_tokens=4"]
    done = kvbench("run", *settings)
    assert done.code == 4, done.err
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 2 * len(errors)
    for row in rows:
        expected = errors[row.sample]
        assert (row.error or "").startswith(expected or "") and (row.error is None) == (expected is None), row
        assert (row.value is None) == (expected is not None)
    spoilt = sum(error is not None for error in errors)
    assert f"{2 * spoilt} of {2 * len(errors)} rows failed" in done.out
    again = kvbench("run", *settings)
    assert again.code == 4 and len(rows_of(tmp_path / "out")) == len(rows) and "all " in again.err
