"""Texts that would become lines of scripts, and files of weights, tables and rows that are not what they should be."""

import csv
import errno
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from safetensors.torch import save_file

from benchmarks import hostile_files
from kvbench.cli.terminal import Inert
from kvbench.config.entries import BASES
from kvbench.config.given import class_in
from kvbench.eviction.allocation.layers import TableLayers
from kvbench.eviction.scores.head_table import FORMAT, HeadTable
from kvbench.extras.gates.gates import FastKVzip, KVzap
from kvbench.extras.heads.triattention import FORMAT as STATISTICS
from kvbench.extras.heads.triattention import TriAttention
from kvbench.extras.kvpress.press import Press
from kvbench.report.formats.data import write_csv
from kvbench.support.errors import UserError
from kvbench.tasks.data.convert import convert
from kvbench.tasks.data.download import Unobtained
from kvbench.tasks.data.lock import Download, Output
from tests.cli.conftest import Command

LINES = {
    "launcher.partition": '"a\nrm -rf x"',
    "launcher.account": '"a\rb"',
    "launcher.qos": '"a\u2028b"',
    "launcher.extra": '{comment:"a\nb"}',
    "launcher.setup": '["module load x\ny"]',
    "launcher.python": '"python\x1b[31m"',
}


@pytest.mark.parametrize("setting", LINES)
def test_a_setting_of_a_batch_script_is_one_line(kvbench: Command, setting: str) -> None:
    refused = kvbench("run", "policy=full", "launcher=slurm", f"{setting}={LINES[setting]}")
    assert refused.code == 2 and refused.err.count("\n") == 1, refused.err
    assert setting in refused.err and "a text of one line without control characters" in refused.err


def test_so_are_the_folders_of_results_and_data(kvbench: Command, tmp_path: Path) -> None:
    for setting in ("results.dir", "data.root"):
        refused = kvbench("plan", "policy=full", f'{setting}="{tmp_path}/a\nb"')
        assert refused.code == 2 and setting in refused.err and "one line" in refused.err
    assert not list(tmp_path.iterdir())


def test_no_line_of_csv_is_a_command_of_github_actions() -> None:
    for text in ("::error::x", "a\n::set-output name=x::y", "a\r  ::add-mask::b", "x\n##[error]y"):
        out = io.StringIO()
        write_csv([[text, "x"], ["a::b", "x"]], out)
        assert not [line for line in out.getvalue().splitlines() if line.lstrip().startswith(("::", "##["))]
        (field, _), (plain, _) = csv.reader(io.StringIO(out.getvalue(), newline=""))
        assert field.replace("'", "") == text and plain == "a::b"


def test_hydra_builds_nothing_and_reads_no_other_folder(kvbench: Command) -> None:
    for setting in ("hydra.launcher._target_=os.system", "hydra.searchpath=[file:///tmp]"):
        refused = kvbench("run", "policy=full", setting)
        assert refused.code == 2 and "settings of Hydra itself change nothing" in refused.err
        assert refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"context": "a", "answers": [""]}', "every prediction would match"),
        ('{"context": "a", "answers": ["b", "  "]}', "every prediction would match"),
        ('{"context": "a", "answers": ["\\u200b\\ufeff"]}', "no prediction would match"),
        ('{"context": "a", "answers": ["b", "\\ud800"]}', "an incomplete character (a lone surrogate)"),
        ('{"context": "a", "answers": ["b"], "answers": ["c"]}', "'answers' stands in one object twice"),
    ],
)
def test_answers_that_decide_nothing_are_refused(kvbench: Command, tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(line + "\n")
    refused = kvbench("run", "policy=full", "task=jsonl", f"task.path={file}", f"results.dir={tmp_path / 'rows'}")
    assert refused.code == 2 and message in refused.err and "line 1" in refused.err
    assert not list((tmp_path / "rows").glob("rows/*"))


def test_a_press_comes_from_kvpress_or_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.extras.kvpress.press.imported", lambda name: pytest.fail(f"imported {name}"))
    for name in ("antigravity.X", "this.Zen", "..", ".Press", "turtledemo.clock.Hand"):
        with pytest.raises(UserError, match="allowed: a class of kvpress"):
            Press(name)


ARRAYS = {
    "complex": np.zeros((99, 2, 2), complex),
    "dates": np.zeros((99, 2, 2), "datetime64[s]"),
    "texts": np.zeros((99, 2, 2), "U3"),
    "objects": np.array([[None]]),
    "short": np.zeros((9, 2, 2)),
    "nan": np.full((99, 2, 2), np.nan),
    "no layers": np.zeros((99, 0, 2)),
    "no heads": np.zeros((99, 2, 0)),
}


def test_a_budget_table_holds_parts(tmp_path: Path) -> None:
    """A shape that no file holds takes no memory."""
    table = tmp_path / "table.npy"
    for kind, content in ARRAYS.items():
        np.save(table, content, allow_pickle=True)
        with pytest.raises(UserError, match=r"policy\.layers\.path=.*expected a \.npy of parts"):
            TableLayers(path=str(table))
            pytest.fail(kind)
    np.save(table, np.zeros((99, 2, 2)))
    large = table.read_bytes().replace(b"(99, 2, 2), }  ", b"(99, 2, 2000),}")
    for content in (b"", b"\x93NUMPY", b"PK\x03\x04", b"x" * 300, b"\xff\xfe", large):
        table.write_bytes(content)
        with pytest.raises(UserError, match=r"policy\.layers\.path=.* is no array"):
            TableLayers(path=str(table))


def gates(**changes: object) -> dict[str, torch.Tensor]:
    """The weights of one layer of KVzap: 2 KV heads, hidden states of 4."""
    parts = {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)} | changes
    return {f"layers.0.{name}": part for name, part in parts.items() if isinstance(part, torch.Tensor)}


GATES = {
    "another size": gates(bias=torch.zeros(3)),
    "one axis": gates(weight=torch.zeros(4)),
    "no head": gates(weight=torch.zeros(0, 4), bias=torch.zeros(0)),
    "whole numbers": gates(weight=torch.zeros(2, 4, dtype=torch.int64)),
    "nan": gates(bias=torch.full((2,), torch.nan)),
}


def test_weights_of_gates_fit_together(tmp_path: Path) -> None:
    path = tmp_path / "gates.safetensors"
    save_file(gates(), path)
    KVzap(str(path))
    for kind, parts in GATES.items():
        save_file(parts, path)
        with pytest.raises(UserError, match=r"score\.gates=.*(do not fit together|not finite floating-point numbers)"):
            KVzap(str(path))
            pytest.fail(kind)


def test_a_file_of_another_kind_holds_no_gates(tmp_path: Path) -> None:
    for content in ([], {"module": 3}, {"module": [3]}, {"module": [{"b": 1}]}, {"module": [{3: 4}]}):
        torch.save(content, tmp_path / "gates.pt")
        with pytest.raises(UserError, match=r"score\.gates="):
            FastKVzip(str(tmp_path / "gates.pt"))
    for data in (pickle.dumps(os.getcwd), b"x" * 99):
        (tmp_path / "gates.pt").write_bytes(data)
        with pytest.raises(UserError, match=r"score\.gates=.* holds more than tensors") as refused:
            FastKVzip(str(tmp_path / "gates.pt"))
        assert "weights_only" not in str(refused.value), "no message tells how to run a pickle"


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16])
def test_statistics_of_queries_are_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    arrays = {"mean": torch.zeros(1, 2, 3, 2), "size": torch.zeros(1, 2, 3), "frequencies": torch.zeros(1, 3)}
    words = {"format": STATISTICS, "interleaved": "false", "model": "a", "model_sha256": "b", "source": "{}"}
    path = tmp_path / "queries.safetensors"
    save_file({name: array.to(dtype) for name, array in arrays.items()}, path, words)
    with pytest.raises(UserError, match="not finite float32 numbers"):
        TriAttention(str(path))
    save_file(arrays, path, words | {"source": "[" * 100_000})
    with pytest.raises(UserError, match="holds no statistics of queries"):
        TriAttention(str(path))


def test_what_is_no_head_table_is_refused(tmp_path: Path) -> None:
    """One that is nested too deeply, of another shape, with too large a number."""
    ours = '{"format": "' + FORMAT + '", "shape": '
    for text in (
        '{"scores": ' + "[" * 100_000,
        ours + '3, "scores": [[1]]}',
        f'{ours}[1, 1], "scores": [[1{"0" * 400}]]}}',
    ):
        (tmp_path / "heads.json").write_text(text)
        with pytest.raises(UserError, match=r"score\.path="):
            HeadTable(str(tmp_path / "heads.json"))


def test_a_parquet_file_does_not_grow_without_limit(tmp_path: Path) -> None:
    """A dictionary holds a text once, and each row names it."""
    once, often = pa.array(["x" * 20_000]), pa.array([0] * 2000, pa.int32())
    fetched = tmp_path / "f.parquet"
    parquet.write_table(pa.table({"a": pa.DictionaryArray.from_arrays(often, once)}), fetched, compression="zstd")
    assert fetched.stat().st_size < 2**14
    download = Download("mine", "parquet", "f.parquet", (Output("mine/f.jsonl"),))
    with pytest.raises(Unobtained, match="grow to more than 100 times"):
        list(convert(download, fetched, tmp_path))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 2**20


def test_neither_does_one_long_list(tmp_path: Path) -> None:
    """Numbers that are all the same take no room in the file, and one row holds them all."""
    fetched = tmp_path / "f.parquet"
    parquet.write_table(pa.table({"a": pa.array([[0] * 2 * 10**6], pa.list_(pa.int8()))}), fetched)
    rows = [{"a": ["x", None], "b": {"c": "y"}}, {"a": None, "b": {"c": None}}]
    with pytest.raises(Unobtained, match="grow to more than 100 times"):
        list(convert(Download("mine", "parquet", "f.parquet", (Output("mine/f.jsonl"),)), fetched, tmp_path))
    parquet.write_table(pa.Table.from_pylist(rows), fetched)
    ((_, made),) = convert(Download("mine", "parquet", "f.parquet", (Output("mine/f.jsonl"),)), fetched, tmp_path)
    assert [json.loads(line) for line in made.read_text().splitlines()] == rows


def test_a_score_that_exits_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(UserError, match=r"mine\.py does not load: SystemExit: 3"):
        class_in(str(tmp_path / "mine.py"), "score", BASES["score"])


@pytest.mark.parametrize(
    "writes",
    [["::error::x\n"], ["a\n", "  ##[error]x"], ["a", "\r::x\nb"], ["\t", "::x"], ["a ::x\n::y"], ["a", "::b", "::c"]],
)
def test_no_line_of_stdout_is_a_command_of_github_actions(writes: list[str]) -> None:
    out = io.StringIO()
    stream = Inert(out)
    assert [stream.write(text) for text in writes] == [*map(len, writes)]
    lines = out.getvalue().replace("\r", "\n").split("\n")
    assert not [line for line in lines if line.lstrip().startswith(("::", "##["))]
    assert out.getvalue().replace("'", "") == "".join(writes)
    assert "a::b" not in "".join(writes) or "a::b" in out.getvalue(), "within a line it is none"


def test_a_table_prints_no_command(kvbench: Command, folder: Callable[..., Path]) -> None:
    path = folder("log", policy="::error::taken", metric="::error::taken", task="::error::taken")
    for command in (["table"], ["table", "--format", "latex"], ["cost"]):
        shown = kvbench("report", *command, "--results", str(path))
        assert shown.code in (0, 4) and "::error::taken" in shown.out
        assert not [line for line in shown.out.splitlines() if line.lstrip().startswith("::")]


def test_a_failing_disk_is_no_bug(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "rows/a.jsonl")

    monkeypatch.setattr("kvbench.cli.status.status", fails)
    refused = kvbench("status", "--results", ".")
    assert refused.code == 1 and refused.err.count("\n") == 1
    assert "rows/a.jsonl" in refused.err and "disk" in refused.err and "bug" not in refused.err


CHOICE = [
    *("rows: empty, table", "rows: truncated, html", "rows: an LFS pointer, export"),
    *("folder: its name is not UTF-8, table", "folder: a name in rows/ that is not UTF-8, csv"),
    *("folder: an nll of 1e300, table", "folder: an nll of 800, html", "folder: curves of 1e300, perplexity"),
    "head table: code in a .py",
]


@pytest.mark.parametrize("name", CHOICE)
def test_a_choice_of_the_hostile_files(name: str) -> None:
    ends, text = hostile_files.ending(dict(hostile_files.attacks())[name])
    assert ends in ("refused", "read"), (ends, text)
