"""The command line on a tiny random model whose answers mean nothing and whose rows mean everything.

The process that shares tests out reads this file too, so that torch and transformers are imported where they are used.
"""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from kvbench.cli.main import commands, declared, main
from kvbench.records import Row, read_rows
from kvbench.support.paths import assets
from kvbench.tasks.ruler.niah import Niah
from tests.forked import Forked

COMMANDS = frozenset(commands())
TOKENIZER = assets() / "reference"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama, 4 query heads over 2 KV heads, that reads RULER's text."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def stopping_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, told to stop at the first token of its answer to sample 0 of the default task."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("stopping")
    for file in tiny_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    task = Niah(
        name="ruler/niah_single_1",
        haystack="noise",
        keys="words",
        values="numbers",
        context_length=512,
        max_new_tokens=4,
    )
    (sample,) = task.generate(lambda text: len(tokenizer(text).input_ids), [0])
    model = LlamaForCausalLM.from_pretrained(folder)
    ids = torch.tensor([tokenizer(sample.prompt).input_ids])
    stop = int(model(ids).logits[0, -1].argmax())
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": stop}))
    return folder


@pytest.fixture(scope="session")
def bytes_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that reads bytes, with a tokenizer that puts <s> and </s> around a text."""
    from tests.models.conftest import tiny_llama
    from tests.models.tokenizers import of_bytes

    folder = tmp_path_factory.mktemp("bytes")
    tokenizer = of_bytes(begin=True, end=True)
    tiny_llama(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Finished:
    """What a command left."""

    code: int
    out: str
    err: str


Command = Callable[..., Finished]


@cache
def _takes_groups(command: str) -> bool:
    return bool(declared(command).words.groups)


def exact(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments for the cells that they name and no reference, with a length for RULER, which has none of its own
    for real models. A setting of a test replaces that of a fixture before it."""
    if arguments and arguments[0] in COMMANDS and _takes_groups(arguments[0]):
        last = {word.partition("=")[0]: place for place, word in enumerate(arguments) if "=" in word}
        arguments = tuple(
            word for place, word in enumerate(arguments) if last.get(word.partition("=")[0]) in (None, place)
        )
    if arguments[:1] in (("run",), ("plan",)) and not any(word.startswith("reference=") for word in arguments):
        arguments = (arguments[0], "reference=none", *arguments[1:])
    tasks = [word for word in arguments if word.startswith("task=")] or ["task=ruler"]
    has_length = any(word.startswith("task.context_length=") for word in arguments)
    if "model=hf" in arguments and not has_length and all(re.match("task=ruler(/|$)", word) for word in tasks):
        return (*arguments, "task.context_length=512")
    return arguments


@pytest.fixture
def kvbench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Finished:
        capsys.readouterr()
        code = main(exact(arguments))
        out, err = capsys.readouterr()
        return Finished(code, out, err)

    return run


@pytest.fixture
def tiny(tiny_model: Path) -> tuple[str, ...]:
    """Settings of a quick run: the tiny model, three samples of 512 tokens, four new ones."""
    return (
        "model=hf",
        f"model.path={tiny_model}",
        "model.dtype=float32",
        "task.samples=3",
        "task.max_new_tokens=4",
        "results.dir=out",
    )


def outcomes(folder: Path) -> dict[tuple[str, int], dict[str, object]]:
    """Rows by cell and sample, without what may differ between two runs."""
    return {(row.cell, row.sample): row.outcome() for row in read_rows(folder)}


def rows_of(folder: Path) -> list[Row]:
    """All rows of a folder."""
    return read_rows(folder)


@pytest.fixture
def fork(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Forked]]:
    """The same commands in processes of their own, in the same empty folder; those that still run are killed."""
    started: list[Forked] = []

    def go(*arguments: str) -> Forked:
        output_folder = tmp_path_factory.mktemp("said")
        started.append(Forked(lambda: main(exact(arguments)), tmp_path, output_folder))
        return started[-1]

    yield go
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()


def wait_for_rows(folder: Path, run: Forked, more_than: int = 0) -> None:
    """Until rows are on disk, or more of them; they are read where their files have grown."""
    sizes: dict[str, int] = {}
    for _ in range(36000):
        before, sizes = sizes, {path.name: path.stat().st_size for path in folder.glob("rows/*.jsonl")}
        if sizes != before and len(read_rows(folder, lambda _: None)) > more_than:
            return
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    pytest.fail("no rows after six minutes")
