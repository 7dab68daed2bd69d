"""What is handed on: the source archive and the wheel, with all that travels in it."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
import yaml

from kvbench import __version__
from tests.repository import ROOT, code

INSTALLED = """
from kvbench.support import paths
print(paths.conf(), paths.papers(), paths.assets(), sep="\\n")
"""


def _build(kind: str, source: Path, folder: Path) -> Path:
    """Call the build backend as pip does, without an isolated environment: no network."""
    code = f"from hatchling.build import build_{kind}; print(build_{kind}({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


def _files(*folders: str) -> set[str]:
    """The files of the checkout under some folders, byte code aside."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source archive, so that both are known to be complete."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(_build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder)  # our own archive; Python 3.11.2 knows no filter
    return _build("wheel", folder / f"kvbench-{__version__}", folder)


def test_the_wheel_holds_code_settings_papers_and_the_model(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    files, code_files = _files("kvbench"), {file.relative_to(ROOT).as_posix() for file in code()}
    tests = {name for name in files if name.endswith(".py")} - code_files
    expected = files - tests | {f"kvbench/{name}" for name in _files("conf", "results/papers")}
    assert expected - held == set() and tests and not tests & held
    assert "kvbench/py.typed" in held
    assert any(name.startswith("kvbench/models/assets/") for name in held)
    assert {name.split("/")[0] for name in held} == {"kvbench", f"kvbench-{__version__}.dist-info"}


def test_the_wheel_is_no_larger_than_its_model(wheel: Path) -> None:
    """Most of it is the embedded model: what grows is noticed."""
    assert wheel.stat().st_size < 12_000_000
    members = zipfile.ZipFile(wheel).infolist()
    model = sum(member.compress_size for member in members if member.filename.startswith("kvbench/models/assets/"))
    assert sum(member.compress_size for member in members) - model < 2_000_000


def test_licences_and_what_is_said_of_the_package_travel(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    about = f"kvbench-{__version__}.dist-info"
    held = {name.removeprefix(f"{about}/licenses/") for name in archive.namelist() if f"{about}/licenses/" in name}
    assert held == {"LICENSE", "NOTICE", *(f"licenses/{path.name}" for path in (ROOT / "licenses").iterdir())}
    metadata = email.message_from_bytes(archive.read(f"{about}/METADATA"))
    assert (metadata["Name"], metadata["License-Expression"]) == ("kvbench", "Apache-2.0")
    assert metadata["Version"] == __version__
    assert {*metadata["Requires-Python"].split(",")} == {">=3.11", "<3.14"} and metadata[
        "Description-Content-Type"
    ] == "text/markdown"
    assert "Typing :: Typed" in metadata.get_all("Classifier", []) and "kvbench run" in str(metadata.get_payload())
    assert {"accelerate", "benchmarks", "dev", "flash", "slurm", "wandb"} <= {*metadata.get_all("Provides-Extra", [])}
    notice = (ROOT / "NOTICE").read_text()
    assert all(path.name in notice for path in (ROOT / "licenses").iterdir())


def test_citation_and_package_agree() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (cited["title"], cited["version"], cited["license"]) == ("kvbench", __version__, project["license"])
    assert {"cff-version", "message", "authors", "type"} <= {*cited}
    assert f"## [{__version__}] - {cited['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")


MODULES = {"flash-attn": "flash_attn", "huggingface-hub": "huggingface_hub", "hydra-core": "hydra"}
MODULES |= {"nvidia-ml-py": "pynvml", "rouge-score": "rouge_score"}
MODULES |= {"tree-sitter-language-pack": "tree_sitter_language_pack"}
BY_TRANSFORMERS = ("safetensors", "tokenizers")  # which reads models by them; rows record their versions


def test_every_package_that_is_asked_for_is_used() -> None:
    """Imported, or loaded by name; a list of packages, such as that of the doctor, is no use."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (
        lines for extra, lines in project["optional-dependencies"].items() if extra not in ("dev", "docs", "kvpress")
    )
    packages = [re.match(r"[\w-]+", line)[0] for line in chain(project["dependencies"], *extras)]  # type: ignore[index]
    source = "\n".join(file.read_text("utf-8") for file in code())
    for module in (MODULES.get(package, package) for package in packages if package not in BY_TRANSFORMERS):
        uses = rf'^ *(import|from) {module}\b|(import_module|find_spec|pinned|version)\("{module}"'
        assert re.search(uses, source, re.MULTILINE), f"{module} is a dependency that nothing imports"


def test_an_unpacked_wheel_finds_its_folders(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    expected = [site / "kvbench" / name for name in ("conf", "results/papers", "models/assets")]
    assert [Path(line) for line in done.stdout.split("\n") if line] == expected


def test_an_editable_install_gets_no_copy_of_the_settings(tmp_path: Path) -> None:
    held = zipfile.ZipFile(_build("editable", ROOT, tmp_path)).namelist()
    assert [name for name in held if "conf" in Path(name).parts or "results" in Path(name).parts] == []
