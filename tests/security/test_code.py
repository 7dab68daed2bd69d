"""Files of others run no code: pickles, model classes of their own, YAML tags, templates, archives."""

import io
import json
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

from kvbench.models.loading.load import model_info
from kvbench.models.loading.spec import PICKLES, ModelSpec
from kvbench.support import paths
from kvbench.support.children import Spawning, python, safe_path
from kvbench.tasks.data.convert import convert
from kvbench.tasks.data.lock import Download, Output
from tests.cli.conftest import Command
from tests.embedded import KV_HEADS, LAYERS
from tests.plugins import made_up
from tests.repository import ROOT, code


class Taken:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the embedded model's folder without its weights."""
    folder = tmp_path / "model"
    shutil.copytree(paths.assets() / "reference", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.mark.parametrize("name", [pattern.replace("*", "pytorch_model") for pattern in PICKLES])
def test_pickled_weights_are_refused_by_name(kvbench: Command, model: Path, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "taken"
    (model / name).write_bytes(pickle.dumps(Taken(marker)))
    refused = kvbench("plan", "model=hf", f"model.path={model}", "policy=full", "task.samples=1")
    assert refused.code == 3 and f"{name}: kvbench reads no pickles" in refused.err and refused.err.count("\n") == 1
    assert not marker.exists()


def test_a_pickle_beside_safetensors_is_not_looked_at(model: Path, tmp_path: Path) -> None:
    marker = tmp_path / "taken"
    shutil.copy(paths.assets() / "reference" / "model.safetensors", model)
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Taken(marker)))
    assert model_info(ModelSpec("hf", str(model))).heads == (LAYERS, KV_HEADS)
    assert not marker.exists()


def test_an_adapter_is_refused(kvbench: Command, model: Path) -> None:
    """transformers would read the model that it names instead."""
    shutil.copy(paths.assets() / "reference" / "model.safetensors", model)
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/else"}')
    refused = kvbench("plan", "model=hf", f"model.path={model}", "policy=full", "task.samples=1")
    assert refused.code == 3 and "adapter_config.json" in refused.err and "merge it into its model" in refused.err


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_a_model_folder_is_never_run_and_nobody_is_asked(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    marker = tmp_path / "taken"
    shutil.copy(paths.assets() / "reference" / "model.safetensors", model)
    (model / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = json.loads((model / file).read_text())
    if file == "config.json":
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    else:
        config |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (model / file).write_text(json.dumps(config))

    class Asked(io.StringIO):
        def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
            raise AssertionError("somebody was asked whether code may run")

    monkeypatch.setattr(sys, "stdin", Asked())
    try:
        model_info(ModelSpec("hf", str(model)))
    except (ValueError, FileNotFoundError) as error:
        assert str(error).startswith("model.path=")
        assert file != "config.json" or "(auto_map), which kvbench does not run" in str(error)
    else:
        assert file != "config.json"
    assert not marker.exists()


TAGS = {
    "apply": "x: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{marker}']]",
    "new": "x: !!python/object/new:os.system ['touch {marker}']",
    "name": "x: !!python/name:os.system ''",
    "resolver": "x: ${{oc.env:HOME}}",
}


@pytest.mark.parametrize("tag", ["apply", "new", "name"])
def test_yaml_makes_no_objects(kvbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str) -> None:
    marker = tmp_path / "taken"
    site = tmp_path / "site"
    text = f"_target_: evil.Score\nname: evil\n{TAGS[tag].format(marker=marker)}\n"
    made_up(site, "evil", {"__init__.py": "", "conf/score/evil.yaml": text})
    monkeypatch.syspath_prepend(str(site))
    for command in (
        ["plan", "score=evil"],
        ["doctor", "--all"],
        ["list", "scores", "--long"],
        ["completion", "--ask", "score."],
    ):
        finished = kvbench(*command)
        assert finished.err.count("\n") <= 1 and "Traceback" not in finished.err
        if command[0] == "plan":
            assert (
                finished.code == 2
                and "score evil of plugin evil 1.0" in finished.err
                and "cannot be read" in finished.err
            )
    assert not marker.exists()


def test_names_of_a_plugin_are_printed_as_text(
    kvbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    text = 'says: "\\x1b[2J[red]taken[/] :smile: \\x07"\n_target_: evil.Score\nname: "a[/]b"\n'
    made_up(site, "evil", {"__init__.py": "", "conf/score/a[x]b.yaml": text})
    monkeypatch.syspath_prepend(str(site))
    for command in (["list", "scores"], ["list", "scores", "--long"], ["plan", "score=a[x]b"]):
        finished = kvbench(*command)
        assert "\x1b" not in finished.out + finished.err and "\x07" not in finished.out
        assert command[0] != "list" or (
            "a[x]b" in finished.out and r"\x1b[2J[red]taken[/] :smile: \x07" in finished.out
        )


def test_a_link_in_an_archive_is_a_file_with_its_text(tmp_path: Path) -> None:
    """zipfile writes the member's bytes; where the link points is never opened."""
    archive, work = tmp_path / "fetched.zip", tmp_path / "work"
    work.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        link = zipfile.ZipInfo("a.txt")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
    download = Download("mine", "zip", "fetched.zip", (Output("mine/a.txt", member="a.txt"),))
    ((_, extracted),) = convert(download, archive, work)
    assert extracted.read_text() == "/etc/passwd" and not extracted.is_symlink() and extracted.parent.parent == work


STARTS = (
    lambda: subprocess.run(python("-m", "kvbench", "--version"), check=True, stdout=subprocess.DEVNULL),
    lambda: subprocess.run(python("-m", "pip", "--version"), check=True, stdout=subprocess.DEVNULL),
    lambda: _pool().terminate(),
)


def _pool() -> Pool:
    with safe_path():
        pool = Spawning().Pool(1)
    pool.apply(abs, (-1,))
    return pool


@pytest.mark.parametrize("start", STARTS, ids=["kvbench", "pip", "pool"])
def test_no_child_imports_what_the_working_directory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[], object]
) -> None:
    marker = tmp_path / "taken"
    for name in ("kvbench", "pip", "argparse", "multiprocessing", "pickle"):
        package = tmp_path / name
        package.mkdir()
        for file in ("__init__.py", "__main__.py"):
            (package / file).write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    start()
    assert not marker.exists() and "PYTHONSAFEPATH" not in os.environ


def test_every_python_process_is_started_in_this_way() -> None:
    """Neither `sys.executable` with `-m` or `-c`, nor a context of multiprocessing, stands anywhere else."""
    texts = {path.relative_to(ROOT / "kvbench").as_posix(): path.read_text("utf-8") for path in code()}
    started = re.compile(r"\[sys\.executable|get_context\(|ProcessPoolExecutor|multiprocessing\.(Pool|Process)\(")
    assert [name for name, text in texts.items() if started.search(text)] == ["support/children.py"]
