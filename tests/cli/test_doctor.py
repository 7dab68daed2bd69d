"""What doctor says of an installation that lacks something: a line and a command each, never a traceback."""

import importlib
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kvbench.cli import doctor
from kvbench.cli.main import main
from kvbench.support import paths
from kvbench.tasks.data.lock import read_lock
from tests.cli.conftest import Command


def line_of(out: str, name: str) -> str:
    """The line of the table about `name`, its continuations joined; lines that go on start with a blank."""
    rows: list[str] = []
    for line in out.splitlines():
        if line.startswith(" "):
            rows[-1] += line.strip()
        else:
            rows.append(line)
    (joined,) = (" ".join(row.split()) for row in rows if f" {name} " in row)
    return joined


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that folds nothing."""
    monkeypatch.setenv("COLUMNS", "400")


def test_a_whole_installation_is_healthy(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels those are named that run here; the tests are offline; commands survive a folder with blanks."""
    monkeypatch.setenv("KVBENCH_HOME", "elsewhere")
    finished = kvbench("doctor", "--all", "data.root=my data")
    assert finished.code == 0 and "missing" not in finished.out
    for package in doctor.PACKAGES:
        assert line_of(finished.out, package) == f"ok {package} {metadata.version(package)}"
    for word in ("reference model", "settings", "extra flash"):
        assert word in finished.out
    kernels, hub = (line_of(finished.out, name) for name in ("cpu sdpa float32", "HF_HOME"))
    assert kernels.startswith("ok ") and "math" in kernels and "efficient" not in kernels
    assert hub.startswith("ok ") and "GiB free" in hub and "only models that were downloaded before" in hub
    assert "elsewhere (not there yet)" in line_of(finished.out, "KVBENCH_HOME")
    assert "kvbench data pull pg19 data.root='my data'\n" in finished.out


@pytest.mark.parametrize("package", doctor.PACKAGES[::4])
def test_a_package_that_is_absent_is_named_with_the_command(
    kvbench: Command, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    version = metadata.version

    def lacking(name: str) -> str:
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", lacking)
    finished = kvbench("doctor", "--all")
    assert finished.code == 3 and finished.err == ""
    assert line_of(finished.out, package) == f"missing {package} not installed: pip install {package}"
    assert finished.out.count("missing") == 1


def failing(name: str, error: Exception) -> Callable[[str], ModuleType]:
    """`import_module` of an installation in which one module does not load."""
    load = importlib.import_module

    def load_or_fail(module: str) -> ModuleType:
        if module == name:
            raise error
        return load(module)

    return load_or_fail


@pytest.mark.parametrize("error", [ImportError("no part x"), OSError("libtorch.so:\ncannot open")])
def test_a_package_that_does_not_load_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(doctor.importlib, "import_module", failing("transformers", error))
    assert main(["doctor", "--all"]) == 3
    line = line_of(capsys.readouterr().out, "transformers")
    message = " ".join(str(error).split())
    assert line == (
        f"missing transformers {type(error).__name__}: {message}: pip install --force-reinstall transformers"
    )


def test_without_torch_no_device_is_listed(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    finished = kvbench("doctor", "--all")
    assert finished.code == 3
    assert line_of(finished.out, "torch").endswith("pip install --force-reinstall torch")
    assert " cpu " not in finished.out and "reference model" in finished.out


def test_a_short_answer_says_what_to_fix(kvbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVBENCH_DATA", raising=False)
    done = kvbench("doctor")
    assert done.code == 0 and len(done.out.splitlines()) <= 15 and "to fix" not in done.out
    for word in ("torch", "transformers", "device", "benchmarks", "kvbench data list", "kvbench doctor --all"):
        assert word in done.out
    monkeypatch.setattr(paths, "assets", lambda: tmp_path)
    finished = kvbench("doctor")
    assert finished.code == 3 and f"  reference model: {tmp_path / 'reference'} is without" in finished.out


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_reference_model_that_lacks_a_file_says_which(
    kvbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    for file in doctor.MODEL:
        (tmp_path / "assets" / "reference").mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.assets() / "reference" / file, tmp_path / "assets" / "reference")
    (tmp_path / "assets" / "reference" / name).unlink()
    monkeypatch.setattr(paths, "assets", lambda: tmp_path / "assets")
    finished = kvbench("doctor", "--all")
    assert finished.code == 3 and finished.err == ""
    line = line_of(finished.out, "reference model")
    assert line.startswith("missing ") and line.endswith(f"is without {name}: {doctor.AGAIN}")


@pytest.mark.parametrize(("folder", "line"), [("conf", "settings"), ("assets", "reference model")])
def test_folders_that_are_lost_are_lines_too(
    kvbench: Command, monkeypatch: pytest.MonkeyPatch, folder: str, line: str
) -> None:
    def lost() -> Path:
        raise FileNotFoundError(f"no folder {folder}: the installation is incomplete; install kvbench again")

    monkeypatch.setattr(paths, folder, lost)
    finished = kvbench("doctor", "--all")
    assert finished.code == 3 and line_of(finished.out, line).startswith(f"missing {line} no folder {folder}")
    assert finished.out.count("missing") == 1 and " cpu " in finished.out


def test_a_dtype_that_does_not_multiply_is_named(kvbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """By trying it, whatever the device says about itself."""
    whole = doctor._multiply

    def lacking(torch: ModuleType, device: str, kind: object, tolerance: float) -> float:
        if kind is torch.bfloat16:
            raise RuntimeError("no bfloat16 here\nand more")
        return whole(torch, device, kind, tolerance)

    assert line_of(kvbench("doctor", "--all").out, "cpu dtypes").startswith("ok ")
    monkeypatch.setattr(doctor, "_multiply", lacking)
    line = line_of(kvbench("doctor", "--all").out, "cpu dtypes")
    assert line.startswith("- ") and "not bfloat16 (RuntimeError: no bfloat16 here): choose another with" in line
    assert all(f"{other} " in line and " ms" in line for other in doctor.DTYPES if other != "bfloat16")


def test_a_product_that_is_wrong_is_not_support() -> None:
    for dtype, tolerance in doctor.DTYPES.items():
        assert doctor._multiply(torch, "cpu", getattr(torch, dtype), tolerance) > 0
        if dtype != "float64":
            with pytest.raises(ValueError, match="a product is wrong by"):
                doctor._multiply(torch, "cpu", getattr(torch, dtype), 1e-12)


def test_data_that_is_there_and_data_that_is_not(
    kvbench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a family of tasks lacks, where it was looked for, and the whole command on a line of its own."""
    monkeypatch.delenv("KVBENCH_DATA", raising=False)
    monkeypatch.delenv("KVBENCH_HOME", raising=False)
    finished = kvbench("doctor", "--all")
    assert "data (not there yet)" in line_of(finished.out, "data.root")
    for name, source in read_lock().items():
        line = line_of(finished.out, f"data {name}")
        assert line.startswith("- ") and source.tasks in line and source.patterns[0] in line
        assert f"# data {name}\nkvbench data pull {name}\n" in finished.out
    (tmp_path / "there" / "pg19").mkdir(parents=True)
    (tmp_path / "there" / "pg19" / "1.txt").write_text("a book")
    for arguments, variable in ((["data.root=there"], None), ([], "there")):
        if variable:
            monkeypatch.setenv("KVBENCH_DATA", variable)
        finished = kvbench("doctor", "--all", *arguments)
        assert finished.code == 0 and "GiB free" in line_of(finished.out, "data.root")
        assert (
            line_of(finished.out, "data pg19")
            == "ok data pg19 PG19 perplexity; 60 of 101 downloads have no pinned SHA-256"
        )
        assert line_of(finished.out, "data longbench").endswith(" under there")
