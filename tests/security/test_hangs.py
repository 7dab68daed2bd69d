"""What would keep a command waiting for ever, or end it with a traceback: FIFOs, sizes, templates, closed streams."""

import base64
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvbench.eviction.scores.head_table import read_head_file
from kvbench.extras.conformance.golden.files import _read
from kvbench.extras.gates import gates
from kvbench.extras.gates.gates import FastKVzip
from kvbench.extras.servers.tokenizer import Tokenizer
from kvbench.models.loading.load import model_info
from kvbench.models.loading.spec import ModelSpec, Shape
from kvbench.models.loading.tokenizer_file import growth
from kvbench.models.prompts import chat
from kvbench.models.prompts import tokens as tokens_of_texts
from kvbench.models.prompts.tokens import TokensOf
from kvbench.records import ResultsFolder, file_sizes
from kvbench.run.cell import Cell
from kvbench.run.job_queue import JobQueue
from kvbench.run.plan import plan
from kvbench.support import paths
from kvbench.support.errors import OverLimit, UserError
from tests.cli.conftest import Command
from tests.embedded import KV_HEADS, LAYERS
from tests.run.survival.faking import FakeEngine, go, put_in, sweep

ROOMS = ("rows", "leases", "processes", "jobs", "sweeps", "kept", "prompts", "cells", "environments", "probes")


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """A test that hangs ends; it may wait long for a busy machine."""

    def hangs(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(900)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(paths.assets() / "reference", tmp_path / "model"))


@pytest.mark.parametrize("room", [*ROOMS[:4], *(pytest.param(room, marks=pytest.mark.slow) for room in ROOMS[4:])])
def test_a_fifo_in_a_folder_keeps_nobody_waiting(
    kvbench: Command, folder: Callable[..., Path], tmp_path: Path, room: str
) -> None:
    path = folder()
    (path / room).mkdir(exist_ok=True)
    for suffix in (".jsonl", ".json", ".0", "-0000000000000000-00000.parquet"):
        os.mkfifo(path / room / f"0f{suffix}")
    for command in (["status"], ["report", "table"], ["report", "cost"], ["report", "html", "--out", "page.html"]):
        finished = kvbench(*command, "--results", str(path))
        assert finished.code in (0, 2, 3, 4, 75) and "Traceback" not in finished.err, (command, finished)
        assert "internal error: a bug" not in finished.err


def test_a_run_says_for_whom_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease without a name is taken over when it has been there for as long as leases last."""
    put_in(FakeEngine(), monkeypatch)
    cells: tuple[Cell, ...] = sweep(tmp_path / "model")
    todo, folder, messages = plan(cells, set()), tmp_path / "out", list[str]()
    lease = folder / "leases" / f"{todo.groups[0].key}-1.0"
    lease.parent.mkdir(parents=True)
    lease.touch()
    outcome = go(folder, cells, tell=messages.append, lease_seconds=3)  # longer than its own rows take
    assert outcome.rows == todo.rows_to_do and list(lease.parent.iterdir()) == []
    (text,) = messages
    assert text.startswith("waiting for 3 rows of ") and f"{lease}; " in text and "silent for 3 s" in text


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("num_hidden_layers", 10**9), ("hidden_size", 1e30), ("num_key_value_heads", 10**9)),
        *(("vocab_size", 1e30), ("vocab_size", 0)),
    ],
)
def test_sizes_that_no_tensor_has_are_refused(model: Path, name: str, size: float) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {name: size}))
    with pytest.raises(FileNotFoundError, match=rf"config\.json says {name}=.* the weights hold \d+ tensors"):
        model_info(ModelSpec("hf", str(model)))


def test_a_shape_has_a_number_of_layers(kvbench: Command) -> None:
    with pytest.raises(ValueError, match=r"num_hidden_layers=1000000000: allowed: 1 to 10000"):
        Shape("qwen2", {"num_hidden_layers": 10**9})


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LETTERS = "{% for a in messages[-1].content %}{% for b in messages[-1].content %}{% endfor %}{% endfor %}"
CALLS = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"


def processor_seconds() -> float:
    """Of this process and of those that it has waited for: the same on a busy machine."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def with_template(model: Path, template: object) -> ModelSpec:
    for file in model.glob("*.jinja"):
        file.unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return ModelSpec("hf", str(model))


@pytest.mark.parametrize(
    "template",
    [LOOPS, pytest.param(LETTERS, marks=pytest.mark.slow), CALLS, "{{ 'a' * 9999999999 }}"],
    ids=["loops", "letters", "calls", "memory"],
)
def test_a_template_without_an_end_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.setattr(chat, "LIMITS", replace(chat.LIMITS, seconds=1))
    spec, before = with_template(model, template), processor_seconds()
    with pytest.raises(OverLimit, match=r"model\.path=.*: the model's chat template takes more than (1 s|2 GiB)"):
        model_info(spec)
    assert processor_seconds() - before < 30
    assert model_info(replace(spec, chat="never")).heads == (LAYERS, KV_HEADS)


SECRET = "{{ messages[-1].content }}{% if 'violet' in messages[-1].content %}[]{% endif %}"
"""A template that no trial of other words finds out."""


@pytest.mark.parametrize(
    ("excess", "most"),
    [(LOOPS, "1 s"), ("{{ 'x' * 3000000000 }}", "2 GiB"), ("{{ 'x' * 2000000 }}", "1,0.* characters")],
)
def test_a_template_is_bounded_in_every_call(
    kvbench: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excess: str, most: str
) -> None:
    monkeypatch.setattr(chat, "LIMITS", replace(chat.LIMITS, seconds=1))
    with_template(model, SECRET.replace("[]", excess))
    (tmp_path / "f.jsonl").write_text('{"context": "a violet sky", "question": " b", "answers": ["b"]}\n')
    task = ["task=jsonl", f"task.path={tmp_path / 'f.jsonl'}", "task.metric=exact_match", "task.max_new_tokens=4"]
    result = kvbench("run", "model=hf", f"model.path={model}", "policy=snapkv", "score=attn", "budget=0.5", *task)
    assert result.code == 2
    assert re.search(f"the model's chat template takes more than {most}, for 1 turns of ", result.err)


def test_a_template_is_rendered_as_it_is_now(model: Path) -> None:
    with_template(model, "{{ bos_token }}{{ messages[-1].content }}")
    tokenizer = AutoTokenizer.from_pretrained(model)
    for mark in ("<a>", "<b>"):
        tokenizer.bos_token = mark
        for text in ("", "\ud800 \x00 \U0001f642 e\u0301\r\n", "long " * 10**5):
            assert chat.render(tokenizer, None, text) == mark + text
    tokenizer.chat_template = "{{ messages[-1].content | upper }}"
    assert chat.render(tokenizer, None, "hello") == "HELLO"


TEMPLATES = {
    "{% for a in range(10**9) %}{% endfor %}": "OverflowError: Range too big",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}": "RecursionError",
    "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}": "RecursionError",
    "{% for a in messages %}" * 25 + "{% endfor %}" * 25: "SyntaxError: too many statically nested blocks",
    "{{ 1 / 0 }}": "ZeroDivisionError",
    "{{ ''.__class__.__mro__ }}": "access to attribute '__class__'",
    "{% for a in": "unexpected 'end of template'",
}


@pytest.mark.parametrize("template", [*TEMPLATES, 5, {"name": "x"}], ids=range(len(TEMPLATES) + 2))
def test_a_template_that_fails_is_one_line(model: Path, template: object) -> None:
    spec = with_template(model, template)
    assert model_info(spec).heads == (LAYERS, KV_HEADS)
    message = TEMPLATES[template] if isinstance(template, str) else ""
    with pytest.raises(UserError, match=f"the model's chat template refuses: {re.escape(message)}"):
        chat.render(AutoTokenizer.from_pretrained(model), None, "hello")


def test_a_tokenizer_that_panics_is_refused(model: Path) -> None:
    content = json.loads((model / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a*)*b{1,99999}(?=x)"}, "content": "\\k<9>"}
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "((((("}, "behavior": "Isolated", "invert": False}
    (model / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(FileNotFoundError, match=r"cannot be loaded: "):
        model_info(ModelSpec("hf", str(model)))


CLOSED = (
    "import os, sys\nfor n in map(int, sys.argv[1].split(',')): os.close(n)\nos.execv(sys.executable, sys.argv[2:])"
)


@pytest.mark.parametrize(
    ("closed", "command"), [("1", ["list", "policies"]), ("0,1,2", ["--version"]), ("0,1,2", ["status", "--jsn"])]
)
def test_a_closed_stream_is_no_traceback(tmp_path: Path, closed: str, command: list[str]) -> None:
    line = [sys.executable, "-c", CLOSED, closed, sys.executable, "-m", "kvbench", *command]
    finished = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert finished.returncode == (2 if command[0] == "status" else 0)
    assert finished.stdout == "" and "Traceback" not in finished.stderr


def test_a_panic_of_rust_is_one_line(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As pyo3 raises it."""

    def panic(*_: object) -> None:
        raise PanicException("range end index 7 out of range")

    monkeypatch.setattr("kvbench.cli.status.status", panic)
    finished = kvbench("status", "--results", ".")
    assert finished.code == 1 and "PanicException: range end" in finished.err and finished.err.count("\n") == 1
    assert not file_sizes(".") and JobQueue(ResultsFolder("."))


def test_a_tokenizer_that_panics_at_a_prompt_fails_that_prompt() -> None:
    class PanicException(BaseException):
        """As pyo3 raises it."""

    def panics(*_: object, **__: object) -> None:
        raise PanicException("called `Result::unwrap()`\nbacktrace")

    with pytest.raises(UserError, match=r"^the model's tokenizer refuses a text: called `Result::unwrap\(\)`$"):
        TokensOf(panics)("a" * 3000)


@pytest.mark.parametrize("room", ["rows", "sweeps", "processes", "cells"])
def test_a_file_with_a_hole_takes_no_memory(kvbench: Command, tmp_path: Path, room: str) -> None:
    (tmp_path / "out" / room).mkdir(parents=True)
    with (tmp_path / "out" / room / f"a{'.jsonl' if room == 'rows' else '.json'}").open("wb") as file:
        file.truncate(2**36)
    refused = kvbench("status", "--results", "out") if room != "cells" else None
    if refused is None:
        with pytest.raises(UserError, match="more than"):
            ResultsFolder(tmp_path / "out").read_cell("a")
    else:
        assert room == "processes" or (refused.code == 2 and "more than" in refused.err)


@pytest.mark.parametrize(
    "name", ["gates.pt", "gates.safetensors", "heads.json", "golden.json", "tokenizer_config.json"]
)
def test_neither_does_any_other_file_of_others(model: Path, name: str) -> None:
    readers: dict[str, Callable[[Path], object]] = {
        "gates": lambda path: FastKVzip(str(path)),
        "heads": lambda path: read_head_file(str(path)),
        "golden": _read,
        "tokenizer_config": lambda path: ModelSpec("hf", str(model)).folder(),
    }
    with (model / name).open("wb") as file:
        file.truncate(2**36)
    with pytest.raises(UserError, match=f"{name}.* has more than [0-9]+ bytes"):
        readers[name.partition(".")[0]](model / name)


def test_gates_are_not_unpacked_without_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LARGEST", 2**20)
    with zipfile.ZipFile(tmp_path / "gates.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(2**21))
    with pytest.raises(UserError, match="unpacked it has 2097152 bytes, more than 1048576"):
        FastKVzip(str(tmp_path / "gates.pt"))


GREEDY = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
GROWTHS = {
    "normalizer makes up to 1,000,000,000 characters of one": {
        "normalizer": {"type": "Sequence", "normalizers": [GREEDY] * 3}
    },
    "normalizer makes up to 301 characters of one": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "(?=b)"}, "content": "c" * 300}
    },
    "decoder makes up to 1,000 characters of one": {"decoder": {"type": "Sequence", "decoders": [GREEDY]}},
    "post_processor makes up to 81,920 tokens around a text": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A"}}] * 20,
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("message", GROWTHS)
def test_a_tokenizer_that_makes_much_of_little_is_refused(model: Path, message: str) -> None:
    file = model / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | GROWTHS[message]))
    for read in (lambda: model_info(ModelSpec("hf", str(model))), lambda: Tokenizer.read(model)):
        with pytest.raises(UserError, match=f"tokenizer.json: its {message}: allowed: "):
            read()


def test_the_growth_of_rules() -> None:
    nfkc = struct.pack("<I", 4) + bytes(4) + "ab\0\ufdfa\0".encode() + b"x" * 18 + b"\0"
    assert growth({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(nfkc).decode()}) == 18
    assert growth({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}) == 1
    assert growth({"type": "Prepend", "prepend": "\u2581"}) == growth({"type": "NFKC"}) == growth(None) == 1


def test_a_tokenizer_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_of_texts, "MOST_SECONDS", 0.01)
    waiting = threading.Event()
    with pytest.raises(OverLimit, match=r"the model's tokenizer takes more than 0\.01 s for a text"):
        TokensOf(lambda *_, **__: waiting.wait())("a")
    waiting.set()
