"""Fill build/wheels with what a GPU machine without network lacks (Python 3.12, Linux, x86-64): `make gpu-bundle`.

    python scripts/gpu_bundle.py [--out FOLDER]

FOLDER/kvbench: what `kvbench run` imports beside torch, transformers and the packages of tables. FOLDER/transformers:
transformers with what it imports, for a machine that has none or an old one. FOLDER/kvpress: kvpress 0.5.5 with a
transformers below 5.3, and what these import. torch, triton and numpy are expected on the machine, and pandas, pyarrow
and scipy, which tables need and which would double the bundle. Raises SystemExit for a bundle of 64 MiB or more, for a
wheel of another Python or platform, and for a package that no wheel holds although one needs it.
"""

import argparse
import shutil
import subprocess
import sys
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
BUILT = "antlr4-python3-runtime==4.9.3"
"""Has no wheel on PyPI; pure Python."""
KVBENCH = (
    *("annotated-types", "hydra-core", "jaxtyping", "jinja2", "markdown-it-py", "markupsafe", "mdurl", "omegaconf"),
    *("packaging", "pydantic", "pydantic-core", "pygments", "pyyaml", "rich", "typing-extensions", "typing-inspection"),
    *("wadler-lindig", "wonderwords"),
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
ON_MACHINE = frozenset(("torch", "triton", "numpy", "setuptools"))
UNUSED = frozenset(("datasets", "fire", "pandas", "peft", "requests"))
"""What kvpress imports for presses that are not compared; `benchmarks/ratios/kvpress_side.py` stands in for them."""


def main() -> None:
    """Download and say what it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "wheels")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    pip = (sys.executable, "-m", "pip")
    constraints = ("-c", str(ROOT / "constraints.txt"))
    bundles = (("kvbench", KVBENCH, constraints), ("transformers", TRANSFORMERS, constraints), ("kvpress", KVPRESS, ()))
    for name, packages, pins in bundles:
        download = (*pip, "download", "-q", "--no-deps", "--only-binary=:all:", *TARGET, *pins)
        command = [*download, "-d", str(out / name), *packages]
        if subprocess.run(command, check=False).returncode:  # an index that does not answer looks like a conflict
            subprocess.run(command, check=True)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(out / "kvbench"), BUILT], check=True)
    for folder in sorted(out.iterdir()):
        wheels = list(folder.glob("*.whl"))
        print(f"{folder}: {len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 2**20:.1f} MiB")
    total = sum(wheel.stat().st_size for wheel in out.glob("*/*.whl"))
    if total >= LIMIT:
        sys.exit(f"the bundle takes {total / 2**20:.1f} MiB, allowed: less than {LIMIT >> 20}; leave a package out")
    ours = [*out.glob("kvbench/*.whl"), *out.glob("transformers/*.whl")]
    wrong = [*faults(ours, ON_MACHINE), *faults([*out.glob("kvpress/*.whl")], ON_MACHINE | UNUSED)]
    if wrong:
        sys.exit("\n".join(wrong))


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
