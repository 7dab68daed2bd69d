"""Files of other people that are not what they should be: each may end a command with one line, never as a bug.

    python -m benchmarks.hostile_files [--only WORDS] [--all]

An attack makes a file (rows, weights, tables, statistics, prompts, settings, a model's folder, a download) and names
the command that reads it. Each runs in a child of this process with 4 GiB more memory and 60 s of processor time.
Printed is how each ends: refused (exit code 2 or 3 and one line), read (0, 4 or 5), or BAD: another exit code, an
internal error, several lines of error, a traceback, code of the file that ran, a refusal that was not due, or no
refusal that was. Ends with 1 if any is BAD.
"""

import argparse
import io
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from safetensors.torch import save_file

from benchmarks.damage import write, write_sides
from kvbench.cli.main import main as kvbench
from kvbench.eviction.scores.head_table import FORMAT as HEADS
from kvbench.extras.heads.triattention import FORMAT as STATISTICS
from kvbench.records import Curve, read_rows
from kvbench.records.parquet import to_parquet
from kvbench.records.parquet_rows import metadata_of
from kvbench.records.row import with_checksum
from kvbench.support import paths
from kvbench.tasks.data.convert import convert
from kvbench.tasks.data.download import Unobtained
from kvbench.tasks.data.lock import Download, Output

SECONDS, ROOM = 60, 4 * 2**30
"""Processor time and memory that a command may take beside those of this process."""
DEEP = "[" * 200_000
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 123456\n"
MARK = 123.4375
"""A number that is replaced by one that no measurement is."""
RAN = "ran"
"""The file that code of an attack would write."""
NOT_UTF8 = os.fsdecode(b"\xff\xfe\x80")
Words = tuple[str, ...]


class Attack(NamedTuple):
    """`make` writes files into an empty folder, the working folder of the command, and returns its words.

    refused: whether the command must be refused; None: it may also be read.
    """

    make: Callable[[Path], Words]
    refused: bool | None = True


def results(path: Path) -> Path:
    """A results folder with rows, kept sets, curves and timings."""
    return write(path / "results")


def packed(path: Path) -> Path:
    """The rows of it as a Parquet file."""
    kvbench(["export", "--results", str(results(path)), "--format", "parquet", "--out", str(path / "rows.parquet")])
    return path / "rows.parquet"


def written(path: Path, data: bytes | str) -> Path:
    """A file with this content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


# Reports

REPORTS: dict[str, Words] = {
    "table": ("report", "table"),
    "csv": ("report", "rows", "--format", "csv"),
    "html": ("report", "html", "--out", "page.html"),
    "plot": ("report", "plot", "tradeoff", "--out", "plot.svg"),
    "perplexity": ("report", "plot", "perplexity", "x=position", "--out", "plot.svg"),
    "efficiency": ("report", "efficiency"),
    "export": ("export", "--format", "junit"),
    "compare": ("compare", "policy=snapkv", "policy=h2o_obcache"),
    "status": ("status",),
}


def of_rows(data: Callable[[bytes], bytes], command: str) -> Attack:
    """A damaged Parquet file of rows, read by a report."""

    def make(path: Path) -> Words:
        file = packed(path)
        file.write_bytes(data(file.read_bytes()))
        return (*REPORTS[command], "--results", str(file))

    return Attack(make)


def remade(table: Callable[[pa.Table], pa.Table]) -> Callable[[bytes], bytes]:
    """Other rows, as a Parquet file with their checksum."""

    def data(before: bytes) -> bytes:
        return to_parquet(table(parquet.read_table(pa.BufferReader(before))), metadata_of({}))

    return data


def with_column(name: str, values: Callable[[int], pa.Array]) -> Callable[[bytes], bytes]:
    """Rows with another column in place of one."""
    return remade(lambda rows: rows.set_column(rows.column_names.index(name), name, values(rows.num_rows)))


ROWS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "first bytes alone": lambda data: data[:4],
    "an LFS pointer": lambda data: POINTER,
    "text": lambda data: b"policy,score\n",
    "a page": lambda data: b"<!doctype html><html>404</html>",
    "zeros": lambda data: bytes(4096),
    "no columns": remade(lambda rows: pa.table({"a": [1]})),
    "texts for numbers": with_column("value", lambda count: pa.array(["x"] * count)),
    "lists for texts": with_column("policy", lambda count: pa.array([["x"]] * count)),
    "bytes for texts": with_column("policy", lambda count: pa.array([b"\xff"] * count)),
    "huge samples": with_column("sample", lambda count: pa.array([2**64 - 1] * count, pa.uint64())),
}


def in_folder(change: Callable[[Path], object], command: str, refused: bool | None = None) -> Attack:
    """A folder of rows with other files, read by a report."""

    def make(path: Path) -> Words:
        folder = results(path)
        change(folder)
        return (*REPORTS[command], "--results", str(folder))

    return Attack(make, refused)


def _rows_file(folder: Path) -> Path:
    return next((folder / "rows").iterdir())


def _with_number(line: str, number: float) -> str:
    """A line whose number `MARK` is another one, with its checksum; no row or curve of kvbench would hold it."""
    fields = json.loads(line)
    del fields["checksum"]
    return with_checksum(json.dumps(fields).replace(str(MARK), repr(number))) + "\n"


def _values(number: float) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        lines = [replace(row, metric="nll", value=MARK).to_json() for row in read_rows(folder)]
        shutil.rmtree(folder / "finished")
        _rows_file(folder).write_text("".join(_with_number(line, number) for line in lines))

    return change


def _curves(number: float) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        file = next((write_sides(folder) / "curves").iterdir())
        curves = [Curve.from_json(line) for line in file.read_text().splitlines()]
        shutil.rmtree(folder / "finished")
        lines = [replace(curve, sums=(MARK, MARK, MARK)).to_json() for curve in curves]
        file.write_text("".join(_with_number(line, number) for line in lines))

    return change


FOLDERS: dict[str, Callable[[Path], object]] = {
    **{
        f"a name in {room}/ that is not UTF-8": lambda folder, room=room: written(
            folder
            / room
            / f"{NOT_UTF8}{'.jsonl' if room in ('rows', 'curves', 'timings', 'prompts', 'kept') else '.json'}",
            b"{}\n",
        )
        for room in ("rows", "cells", "sweeps", "processes", "curves", "timings", "prompts", "kept", "jobs", "finished")
    },
    "a copy of rows whose name is not UTF-8": lambda folder: _rows_file(folder).rename(
        folder / "rows" / f"{NOT_UTF8}.jsonl"
    ),
    "rows are an LFS pointer": lambda folder: _rows_file(folder).write_bytes(POINTER),
    "cells are LFS pointers": lambda folder: [file.write_bytes(POINTER) for file in (folder / "cells").iterdir()],
    "deep rows": lambda folder: written(folder / "rows" / "deep.jsonl", '{"a": ' + DEEP + "\n{}\n"),
    "deep cells": lambda folder: [file.write_text('{"a": ' + DEEP) for file in (folder / "cells").iterdir()],
    "deep curves": lambda folder: written(folder / "curves" / "deep.jsonl", '{"a": ' + DEEP + "\n{}\n"),
    "an nll of 1e300": _values(1e300),
    "an nll of -1e300": _values(-1e300),
    "an nll of 800": _values(800.0),
    "curves of 1e300": _curves(1e300),
    "curves of 800": _curves(800.0),
}


def of_name(command: str) -> Attack:
    """A results folder whose own name is not UTF-8."""

    def make(path: Path) -> Words:
        folder = path / NOT_UTF8
        results(path).rename(folder)
        return (*REPORTS[command], "--results", str(folder))

    return Attack(make, None)


# Files of scores and policies

RUN = ("run", "reference=none", "task.samples=1", "task.context_length=256", "task.max_new_tokens=2", "budget=0.5")
PLAN = ("plan", *RUN[1:])


class Evil:
    """A pickle of it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (RAN, "w"))


def saved(content: object) -> bytes:
    """What torch saves."""
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def array(content: "np.ndarray[Any, Any]") -> bytes:
    """What NumPy saves."""
    stream = io.BytesIO()
    np.save(stream, content, allow_pickle=True)
    return stream.getvalue()


def tensors(parts: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Callable[[Path], object]:
    """A safetensors file."""
    return lambda path: save_file(parts, path, metadata)


def named(setting: str, file: str, content: object, *more: str, command: Words = RUN) -> Attack:
    """A file that a setting names: its bytes, or a function that writes it."""

    def make(path: Path) -> Words:
        at = path / file
        if callable(content):
            content(at)
        elif content is not None:
            written(at, content)  # type: ignore[arg-type]
        return (*command, *more, f'{setting}="{at}"', "results.dir=out")

    return Attack(make)


GARBAGE: dict[str, object] = {
    "empty": b"",
    "an LFS pointer": POINTER,
    "a page": b"<!doctype html><html>404</html>",
    "zeros": bytes(4096),
    "not UTF-8": b"\xff\xfe" * 99,
    "deep": '{"scores": ' + DEEP,
    "deep list": DEEP,
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a broken link": lambda path: path.symlink_to("nowhere"),
    "a pickle": pickle.dumps(Evil()),
    "a header of 2^60 bytes": (2**60).to_bytes(8, "little") + b"{}",
    "a header that is deep": (200_000).to_bytes(8, "little") + DEEP.encode(),
    "a tensor behind the end": b"\x50"
    + bytes(7)
    + b'{"layers.0.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[0,99]}}  ',
    "null": b"null",
    "code": f"open({RAN!r}, 'w')\n",
}
HEADS_BAD: dict[str, object] = {
    "a row too short": b"1\t2\n1\n",
    "nan": b"nan\t1\n",
    "texts": b"a\tb\n",
    "another model": b"1\t0.5\n",
    "zero heads": json.dumps({"format": HEADS, "shape": [0, 0], "scores": []}),
    "rows of none": json.dumps({"format": HEADS, "shape": [1, 0], "scores": [[]]}),
    "huge": json.dumps({"format": HEADS, "shape": [1, 1], "scores": [[10**400]]}),
    "texts in JSON": json.dumps({"format": HEADS, "shape": [1, 1], "scores": [["x"]]}),
    "objects": json.dumps({"format": HEADS, "shape": [1, 1], "scores": [[{}]]}),
    "another field": json.dumps({"format": HEADS, "shape": [1, 1], "scores": [[1]], "x": 1}),
    "a source of another kind": json.dumps(
        {"format": HEADS, "shape": [7, 4], "scores": [[1.0] * 4] * 7, "model": {}, "model_sha256": [1]}
    ),
}
LAYER = {"layers.0.weight": torch.zeros(4, 256), "layers.0.bias": torch.zeros(4)}
KVZAP_BAD: dict[str, object] = {
    "another model": tensors(LAYER),
    "no tensors": tensors({}),
    "other names": tensors({"a": torch.zeros(2)}),
    "a layer too far": tensors({name.replace("0", "9" * 30): part for name, part in LAYER.items()}),
    "whole numbers": tensors({name: part.to(torch.int64) for name, part in LAYER.items()}),
    "nan": tensors({name: part.fill_(torch.nan) for name, part in LAYER.items()}),
    "float8": tensors({name: part.to(torch.float8_e4m3fn) for name, part in LAYER.items()}),
    "complex": tensors({name: part.to(torch.complex64) for name, part in LAYER.items()}),
    "one axis": tensors({"layers.0.weight": torch.zeros(4), "layers.0.bias": torch.zeros(4)}),
    "three axes": tensors({"layers.0.weight": torch.zeros(4, 2, 2), "layers.0.bias": torch.zeros(4)}),
    "no heads": tensors({"layers.0.weight": torch.zeros(0, 4), "layers.0.bias": torch.zeros(0)}),
    "a scalar": tensors({"layers.0.weight": torch.zeros(()), "layers.0.bias": torch.zeros(())}),
}
GATE = {
    "q_proj.weight": torch.zeros(8, 16),
    "q_proj.bias": torch.zeros(8),
    "k_proj.weight": torch.zeros(4, 16),
    "q_norm.weight": torch.zeros(2),
    "k_norm.weight": torch.zeros(2),
    "k_base": torch.zeros(2, 3, 2),
    "b": torch.zeros(2, 2, 1),
}
FAST_BAD: dict[str, object] = {
    "a list": saved([]),
    "no module": saved({"a": 1}),
    "numbers": saved({"module": [1]}),
    "an object": saved({"module": [Evil()]}),
    "code": saved(Evil()),
    "a layer of texts": saved({"module": [{"b": "x"}]}),
    "a layer of numbers": saved({"module": [dict.fromkeys(GATE, 1.0)]}),
    "scalars": saved({"module": [dict.fromkeys(GATE, torch.zeros(()))]}),
    "no heads": saved({"module": [GATE | {"k_base": torch.zeros(0, 3, 2)}]}),
    "width 0": saved({"module": [GATE | {"k_base": torch.zeros(2, 3, 0)}]}),
    "another model": saved({"module": [GATE]}),
    "sparse": saved({"module": [GATE | {"b": torch.zeros(2, 2).to_sparse()}]}),
    "a zip": lambda path: zipfile.ZipFile(path, "w").close(),
}
WORDS = {"format": STATISTICS, "interleaved": "false", "model": "a", "model_sha256": "b", "source": "{}"}
PARTS = {"mean": torch.zeros(1, 2, 3, 2), "size": torch.zeros(1, 2, 3), "frequencies": torch.zeros(1, 3)}
STATISTICS_BAD: dict[str, object] = {
    "int": tensors({name: part.to(torch.int64) for name, part in PARTS.items()}, WORDS),
    "half": tensors({name: part.half() for name, part in PARTS.items()}, WORDS),
    "no metadata": tensors(PARTS),
    "another format": tensors(PARTS, WORDS | {"format": "x"}),
    "deep source": tensors(PARTS, WORDS | {"source": DEEP}),
    "a source that is a list": tensors(PARTS, WORDS | {"source": "[]"}),
    "interleaved is a text": tensors(PARTS, WORDS | {"interleaved": '"x"'}),
    "a part is missing": tensors({"mean": PARTS["mean"]}, WORDS),
    "other shapes": tensors(PARTS | {"size": torch.zeros(2, 2)}, WORDS),
    "no layers": tensors(
        {"mean": torch.zeros(0, 2, 3, 2), "size": torch.zeros(0, 2, 3), "frequencies": torch.zeros(0, 3)}, WORDS
    ),
    "another model": tensors(PARTS, WORDS),
    "nan": tensors(PARTS | {"size": torch.full((1, 2, 3), torch.nan)}, WORDS),
}
PARTS_OF = np.zeros((99, 7, 4))
TABLES_BAD: dict[str, object] = {
    "complex": array(PARTS_OF.astype(complex)),
    "dates": array(PARTS_OF.astype("datetime64[s]")),
    "spans": array(PARTS_OF.astype("timedelta64[s]")),
    "texts": array(PARTS_OF.astype("U3")),
    "bytes": array(PARTS_OF.astype("S3")),
    "objects": array(np.array([Evil()])),
    "records": array(np.zeros(99, [("a", "f8")])),
    "void": array(np.zeros((99, 1, 1), "V8")),
    "nan": array(np.full((99, 7, 4), np.nan)),
    "negative": array(PARTS_OF - 1),
    "two axes": array(np.zeros((99, 7))),
    "no layers": array(np.zeros((99, 0, 4))),
    "no heads": array(np.zeros((99, 7, 0))),
    "another model": array(np.zeros((99, 1, 1))),
    "an absurd shape": array(PARTS_OF).replace(b"(99, 7, 4), }      ", b"(99, 7, 4000000),}"),
    "a shape of 10^30": array(PARTS_OF).replace(b"(99, 7, 4), }             ", b"(99, 7, 10000000000000),}"),
    "a negative shape": array(PARTS_OF).replace(b"(99, 7, 4), } ", b"(99, -7, 4), }"),
    "a shape of texts": array(PARTS_OF).replace(b"(99, 7, 4), }  ", b"('a', 7, 4),}  "),
    "a header of code": array(PARTS_OF).replace(b"{'descr': '<f8'", b"{'descr':open(0)"),
    "a zip": lambda path: zipfile.ZipFile(path, "w").close(),
    "npz": lambda path: np.savez(path.open("wb"), a=PARTS_OF),
}
LOOSE_BAD: dict[str, object] = {
    "a syntax error": "def\n",
    "no score": "x = 1\n",
    "an exception": "raise RuntimeError('a\\nb')\n",
    "an exit": "import sys; sys.exit(3)\n",
    "zero bytes": "x = '\0'\n",
    "not UTF-8": b"# \xff\xfe\nx = 1\n",
    "deep": "x = " + "(" * 5000 + ")" * 5000 + "\n",
    "endless recursion": "def f(): f()\nf()\n",
    "an LFS pointer": POINTER,
}

# Prompts

LINE: dict[str, Any] = {"context": "a b c", "question": "what", "answers": ["b"]}
PROMPTS_BAD: dict[str, object] = {
    "deep": '{"context": ' + DEEP + "\n",
    "an LFS pointer": POINTER,
    "empty": b"",
    "not UTF-8": b'{"context": "\xff"}\n',
    "no object": b"[1]\n",
    "empty answer": json.dumps(LINE | {"answers": [""]}),
    "blank answer": json.dumps(LINE | {"answers": ["b", " \t"]}),
    "an answer of invisible characters": json.dumps(LINE | {"answers": ["\u200b\ufeff"]}),
    "no answers": json.dumps(LINE | {"answers": []}),
    "an answer that is a number": json.dumps(LINE | {"answers": [5]}),
    "a key twice": '{"context": "a", "answers": ["b"], "answers": ["c"]}',
    "a key twice in a message": '{"messages": [{"role": "user", "content": "a", "content": "b"}], "answers": ["c"]}',
    "half a surrogate pair": '{"context": "\\ud800", "answers": ["b"]}',
    "half a surrogate pair in an answer": '{"context": "a", "answers": ["\\ud800"]}',
    "huge number": '{"context": "a", "answers": ["b"], "x": ' + "9" * 5000 + "}",
    "messages of numbers": '{"messages": [1], "answers": ["b"]}',
}

# Settings

SETTINGS: dict[str, Words] = {
    **{
        f"{key} with {name}": ("plan", "policy=full", "launcher=slurm", f'{key}="a{sign}b"')
        for key in ("launcher.partition", "launcher.account", "launcher.qos", "launcher.python", "launcher.time")
        for name, sign in {"a line end": "\n", "CR": "\r", "NUL": "\0", "ESC": "\x1b", "U+2028": "\u2028"}.items()
    },
    "launcher.extra with a line end": ("plan", "policy=full", "launcher=slurm", 'launcher.extra={comment:"a\nb"}'),
    "launcher.extra key with a line end": ("plan", "policy=full", "launcher=slurm", 'launcher.extra={"a\nb":"c"}'),
    "launcher.setup with a line end": ("plan", "policy=full", "launcher=slurm", 'launcher.setup=["a\nb"]'),
    "results.dir with a line end": ("plan", "policy=full", 'results.dir="a\nb"'),
    "results.dir that is not UTF-8": ("plan", "policy=full", f'results.dir="{NOT_UTF8}"'),
    "data.root with a line end": ("plan", "policy=full", "launcher=slurm", 'data.root="a\nb"'),
    "model.path with a line end": ("plan", "policy=full", "model=hf", 'model.path="a\nb"'),
    "logger.project with a line end": ("plan", "policy=full", "logger=wandb", 'logger.project="a\nb"'),
    "hydra.launcher._target_": ("run", "-m", "policy=full", "hydra.launcher._target_=os.system"),
    "hydra.sweeper._target_": ("run", "-m", "policy=full", "hydra.sweeper._target_=os.system"),
    "+hydra.callbacks": ("run", "-m", "policy=full", "+hydra.callbacks.x._target_=os.system"),
    "a dict with _target_": ("run", "-m", "policy=full", "hydra.launcher={_target_:os.system}"),
    "hydra.searchpath": ("run", "-m", "policy=full", "hydra.searchpath=[file:///tmp]"),
    "score.press=..": (*PLAN, "policy=plain", "score=kvpress", "score.press=.."),
    "score.press=a.": (*PLAN, "policy=plain", "score=kvpress", "score.press=a."),
    "score.press of a module": (*PLAN, "policy=plain", "score=kvpress", "score.press=antigravity.X"),
    "score.press of os": (*PLAN, "policy=plain", "score=kvpress", "score.press=kvpress.presses.base_press.os.system"),
    "score.press of kvpress' torch": (*PLAN, "policy=plain", "score=kvpress", "score.press=torch"),
    "score.press of a dunder": (*PLAN, "policy=plain", "score=kvpress", "score.press=__loader__"),
}


def settings(words: Words) -> Attack:
    """A command line with a hostile setting."""
    return Attack(lambda path: words)


# Folders of models


def model(change: Callable[[Path], object]) -> Attack:
    """The embedded model as a folder that was changed."""

    def make(path: Path) -> Words:
        folder = Path(shutil.copytree(paths.assets() / "reference", path / "model"))
        change(folder)
        return (*RUN[:-1], "policy=full", "model=hf", f"model.path={folder}", "results.dir=out")

    return Attack(make)


def configured(**changes: object) -> Callable[[Path], object]:
    """Another config.json."""
    return lambda folder: (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | changes)
    )


def _with_code(folder: Path) -> None:
    written(folder / "mine.py", f"open({RAN!r}, 'w')\nclass A: pass\nclass B: pass\n")
    configured(auto_map={"AutoConfig": "mine.A", "AutoModelForCausalLM": "mine.B"}, model_type="mine")(folder)


def _with_tokenizer_code(folder: Path) -> None:
    written(folder / "mine.py", f"open({RAN!r}, 'w')\nclass A: pass\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    changes = {"auto_map": {"AutoTokenizer": ["mine.A", None]}, "tokenizer_class": "A"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes))


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    written(folder / "pytorch_model.bin", pickle.dumps(Evil()))


MODELS: dict[str, Callable[[Path], object]] = {
    "auto_map": _with_code,
    "auto_map of a tokenizer": _with_tokenizer_code,
    "pickled weights": _pickled,
    "an adapter": lambda folder: written(folder / "adapter_config.json", '{"base_model_name_or_path": "a/b"}'),
    "no KV heads": configured(num_key_value_heads=0),
    "no query heads": configured(num_attention_heads=0),
    "heads that do not divide": configured(num_key_value_heads=3),
    "negative KV heads": configured(num_key_value_heads=-2),
    "KV heads of a text": configured(num_key_value_heads="x"),
    "no head_dim": configured(head_dim=0),
    "no layers": configured(num_hidden_layers=0),
    "no words": configured(vocab_size=0),
    "a deep config": lambda folder: written(folder / "config.json", '{"a": ' + DEEP),
    "a config that is a list": lambda folder: written(folder / "config.json", "[]"),
    "a config that is not UTF-8": lambda folder: written(folder / "config.json", b"\xff\xfe{}"),
    "a deep tokenizer": lambda folder: written(folder / "tokenizer.json", '{"a": ' + DEEP),
    "a deep tokenizer config": lambda folder: written(folder / "tokenizer_config.json", '{"a": ' + DEEP),
    "weights are an LFS pointer": lambda folder: written(folder / "model.safetensors", POINTER),
    "weights are cut": lambda folder: written(
        folder / "model.safetensors", (folder / "model.safetensors").read_bytes()[:9999]
    ),
    "rope of a text": configured(rope_parameters="x"),
    "rope of theta 0": configured(rope_parameters={"rope_type": "default", "rope_theta": 0}),
    "a window of a text": configured(sliding_window="x", use_sliding_window=True),
    "layer types": configured(layer_types=["x"]),
    "a deep generation config": lambda folder: written(folder / "generation_config.json", '{"a": ' + DEEP),
    "an end token of a text": lambda folder: written(folder / "generation_config.json", '{"eos_token_id": "x"}'),
}

# Downloads


def download(kind: str, write_file: Callable[[Path], object]) -> Attack:
    """A file that was fetched and is converted."""

    def make(path: Path) -> Words:
        write_file(path / "f")
        source = Download("mine", kind, "f", (Output("mine/f.jsonl", member="x"),))
        try:
            list(convert(source, path / "f", path))
        finally:
            grown = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            assert grown < 2**27, f"it has become {grown} bytes"
        return ("--version",)

    return Attack(make)


def _long_list(path: Path) -> None:
    parquet.write_table(pa.table({"a": pa.array([[0] * 10**8], pa.list_(pa.int8()))}), path, compression="zstd")


def _long_text(path: Path) -> None:
    parquet.write_table(pa.table({"a": ["x" * 10**9]}), path, compression="zstd", use_dictionary=False)


def _one_text_often(path: Path) -> None:
    indices = pa.array([0] * 20_000, pa.int32())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 10**5]))
    parquet.write_table(pa.table({"a": texts}), path, compression="zstd")


def _list_of_one_text(path: Path) -> None:
    indices = pa.array([0] * 20_000, pa.int32())
    texts = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 10**5]))
    lists = pa.ListArray.from_arrays(pa.array([0, 20_000], pa.int32()), texts)
    parquet.write_table(pa.table({"a": lists}), path, compression="zstd")


DOWNLOADS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a list of 10^8 numbers": ("parquet", _long_list),
    "a text of 10^9 letters": ("parquet", _long_text),
    "one text in 20,000 rows": ("parquet", _one_text_often),
    "one text in a list of 20,000": ("parquet", _list_of_one_text),
    "an LFS pointer as Parquet": ("parquet", lambda path: path.write_bytes(POINTER)),
    "an LFS pointer as zip": ("zip", lambda path: path.write_bytes(POINTER)),
    "an LFS pointer as tar": ("tar", lambda path: path.write_bytes(POINTER)),
    "deep JSON as SQuAD": ("squad", lambda path: path.write_text(DEEP)),
    "deep JSON as a list": ("list", lambda path: path.write_text(DEEP)),
    "deep Python": ("prompts", lambda path: path.write_text("x = " + "(" * 50_000)),
    "a pickle as CSV": ("csv", lambda path: path.write_bytes(pickle.dumps(Evil()))),
}


def attacks() -> Iterator[tuple[str, Attack]]:
    """All of them by name."""
    for name, data in ROWS.items():
        yield f"rows: {name}, table", of_rows(data, "table")
    for command in REPORTS:
        if command != "status":
            yield f"rows: truncated, {command}", of_rows(ROWS["truncated"], command)
            yield f"rows: an LFS pointer, {command}", of_rows(ROWS["an LFS pointer"], command)
        yield f"folder: its name is not UTF-8, {command}", of_name(command)
    for name, change in FOLDERS.items():
        for command in REPORTS:
            yield f"folder: {name}, {command}", in_folder(change, command)
    heads = ("policy=kvzip_head", "score=head_table")
    for name, content in {**GARBAGE, **HEADS_BAD}.items():
        yield f"head table: {name}", named("score.path", "heads.json", content, *heads)
    for suffix in (".py", ".npy", ".safetensors", ".pt"):
        yield f"head table: code in a {suffix}", named("score.path", f"heads{suffix}", GARBAGE["code"], *heads)
    for name, content in {**GARBAGE, **KVZAP_BAD}.items():
        yield f"gates: {name}", named("score.gates", "g.safetensors", content, "policy=plain", "score=kvzap")
    for name, content in {**GARBAGE, **FAST_BAD}.items():
        yield f"gates.pt: {name}", named("score.gates", "g.pt", content, "policy=plain", "score=fastkvzip")
    for name, content in {**GARBAGE, **STATISTICS_BAD}.items():
        file = "q.safetensors"
        yield f"statistics: {name}", named("score.statistics", file, content, "policy=plain", "score=triattention")
    for name, content in {**GARBAGE, **TABLES_BAD}.items():
        yield f"budget table: {name}", named("policy.layers.path", "t.npy", content, "policy=lukv")
    for name, content in LOOSE_BAD.items():
        yield f"loose score: {name}", named("score.path", "mine.py", content, "policy=plain")
    for name, content in {**GARBAGE, **PROMPTS_BAD}.items():
        yield f"prompts: {name}", named("task.path", "p.jsonl", content, "policy=full", "task=jsonl", command=RUN[:2])
    yield (
        "prompts: a name that is not UTF-8",
        named("task.path", f"{NOT_UTF8}.jsonl", json.dumps(LINE), "policy=full", "task=jsonl"),
    )
    for name, words in SETTINGS.items():
        yield f"setting: {name}", settings(words)
    for name, change in MODELS.items():
        yield f"model: {name}", model(change)
    for name, (kind, write_file) in DOWNLOADS.items():
        yield f"download: {name}", download(kind, write_file)


def ending(attack: Attack) -> tuple[str, str]:
    """How a command ends in a child of this process: refused, read or BAD, and what it says."""
    with tempfile.TemporaryDirectory(prefix="kvbench-hostile-") as place:
        folder = Path(place)
        (folder / "work").mkdir()
        child = os.fork()
        if child == 0:
            _child(attack, folder)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        text = (folder / "err").read_bytes().decode("utf-8", "replace").strip()
        ran = (folder / "work" / RAN).exists()
    told = ("warning: ", "; results in ", "loading ", "kvbench: wrote ")
    lines = [line for line in text.splitlines() if not any(words in line for words in told)]
    why = ""
    if ran:
        why = "code of the file ran"
    elif code not in (0, 2, 3, 4, 5, 75) or "internal error" in text or "Traceback" in text:
        why = f"exit code {code}"
    elif code in (2, 3) and (len(lines) != 1 or not lines[0].startswith("kvbench: ")):
        why = "more than one line"
    elif attack.refused is not None and attack.refused != (code in (2, 3)):
        why = "it is read" if attack.refused else "it is refused"
    return ("BAD: " + why, text) if why else ("refused" if code in (2, 3) else "read", text)


def _child(attack: Attack, folder: Path) -> None:
    """Run the command with limits, its output in a file; does not return."""
    code = 1
    try:
        signal.alarm(20 * SECONDS)
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.chdir(folder / "work")
        os.dup2(os.open(folder / "made", os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(folder / "err", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        words = attack.make(folder / "work")
        address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (address_space + ROOM, address_space + ROOM))
        code = kvbench(words)
    except Unobtained as error:  # as `kvbench data pull` prints it
        print(f"kvbench: {error}", file=sys.stderr)
        code = 3
    except BaseException as error:
        print(f"Traceback: {type(error).__name__}: {error}"[:500], file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _warm() -> None:
    """Import what commands need, which children then have."""
    with tempfile.TemporaryDirectory() as place, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        folder = write(Path(place) / "results")
        kvbench(["plan", "policy=full", f"results.dir={place}/none"])
        for command, words in REPORTS.items():
            if command != "efficiency":
                kvbench(
                    [
                        *(word.replace("page", f"{place}/page").replace("plot.", f"{place}/plot.") for word in words),
                        "--results",
                        str(folder),
                    ]
                )


def main() -> None:
    """Print how each attack ends, and the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="attacks whose names hold this")
    parser.add_argument("--all", action="store_true", help="print those that end well too")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    _warm()
    ends = Counter[str]()
    for name, attack in attacks():
        if flags.only in name:
            end, text = ending(attack)
            ends[end.partition(":")[0]] += 1
            if flags.all or end.startswith("BAD"):
                print(f"{name}: {end}\n    {text[-400:]!a}", flush=True)
    print(f"{sum(ends.values())} attacks: {dict(sorted(ends.items()))}")
    sys.exit(1 if ends["BAD"] else 0)


if __name__ == "__main__":
    main()
